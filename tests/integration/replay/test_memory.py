"""What a server's memory grows by, whatever its callers do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.processes import resident_mib
from tests.support.replay_service import LocalServer, ServerProcess, local_server, server_process
from tests.support.replay_streams import FIFO, UNIFORM, make_config, make_items
from tests.support.scraped import scrape
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay.chunk import Chunk
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind, TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.wire import pack_append, pack_signature
from tidemill.rpc.channel import open_channel
from tidemill.rpc.settings import MEBIBYTE
from tidemill.types import ColumnSpec

WIDE = (ColumnSpec("wide", "uint8", (MEBIBYTE,)),)
"""Streams of which a step is a MiB, and a chunk a step."""
NARROW = (ColumnSpec("narrow", "uint8", ()),)
BUDGET_MIB = 128
SLACK_MIB = 64  # of Python, NumPy and gRPC, which is in no budget


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A server process with a small budget."""
    with server_process("127.0.0.1:0", "--replay.max-memory-mib", str(BUDGET_MIB), forked=False) as running:
        yield running


def wide_table(**fields: object) -> TableConfig:
    """Return a table over wide streams."""
    usual = {"name": "t", "signature": WIDE, "sampler": UNIFORM, "max_items": 10**6, "max_item_steps": 1}
    others = {"remover": FIFO, "rate_limiter": RateLimiterConfig()}
    return TableConfig(**(usual | others | fields))  # type: ignore[arg-type]


def opening(actor_id: str, env_count: int = 1, signature: Sequence[ColumnSpec] = WIDE) -> pb.AppendRequest:
    """Return the first message of an actor whose chunks have one step each."""
    columns = pack_signature(tuple(signature))
    opened = pb.AppendOpen(actor_id=actor_id, env_count=env_count, tables=["t"], signature=columns, chunk_length=1)
    return pb.AppendRequest(open=opened)


def step(env_index: int, number: int, block: bytes, payload: bytes | None = None) -> pb.AppendRequest:
    """Return one step of a stream, with an item of that step if a payload is given; an empty one is none."""
    items = [] if payload is None else [make_items(0, [(0, 0, 1)], payloads=[payload] if payload else [])]
    return pb.AppendRequest(data=pack_append([Chunk(env_index, number, 1, 1, 0, (block,))], items))


def wide_block() -> bytes:
    """Return a MiB that no two steps have alike."""
    return np.random.default_rng().bytes(MEBIBYTE)


def fill(stub: replay_pb2_grpc.ReplayServiceStub, items: int) -> None:
    """Append wide items."""
    messages = (step(0, number, wide_block(), b"") for number in range(items))
    list(stub.Append(iter([opening("filler"), *messages]), timeout=WAIT_S))


def refusal(stub: replay_pb2_grpc.ReplayServiceStub, messages: Iterator[pb.AppendRequest]) -> tuple[int, str]:
    """Append until the server refuses; return how many messages it acknowledged and what it said."""
    acknowledged: list[pb.AppendResponse] = []
    with pytest.raises(grpc.RpcError) as caught:
        acknowledged.extend(stub.Append(messages, timeout=WAIT_S))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return len(acknowledged) - 1, str(caught.value.details())


def test_samplers_that_never_read_take_no_more_than_their_share(server: ServerProcess) -> None:
    """Of 24 samplers of a table of 12 MiB only the first get a batch; the room of those who leave is others' again."""
    waiting = 'tidemill_replay_waiting{side="sample",table="t"}'
    with ExitStack() as stack:
        stub = replay_pb2_grpc.ReplayServiceStub(stack.enter_context(open_channel(server.address)))
        stack.enter_context(ReplayClient(server.address)).create_table(wide_table())
        fill(stub, 12)
        before = resident_mib(server.pid)
        asked = pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=12, without_replacement=True), credit=8)
        calls = [stub.Sample(iter([asked])) for _ in range(24)]
        wait_until(lambda: scrape(server.metrics_address)[waiting] >= 20, "most of them to wait")
        assert resident_mib(server.pid) - before < BUDGET_MIB / 4 + SLACK_MIB
        good = stack.enter_context(ReplaySampler([server.address], wide_table(), 12, max_in_flight_batches=1))
        wait_until(lambda: scrape(server.metrics_address)[waiting] >= 21, "another to wait")
        for call in calls:
            call.cancel()
        for _ in range(10):
            assert good.take(WAIT_S) is not None
        wait_until(
            lambda: not scrape(server.metrics_address)["tidemill_replay_batch_bytes"], "the last batch to be sent"
        )


def test_streams_without_items_keep_no_more_than_their_share(server: ServerProcess) -> None:
    """Of 800 streams of a MiB each a quarter of the budget is taken; another actor's small streams continue."""
    with open_channel(server.address) as channel, ReplayClient(server.address) as client:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        client.create_table(wide_table(max_bytes=MEBIBYTE))
        before = resident_mib(server.pid)
        stored, reason = refusal(stub, iter([opening("many", 800), *(step(i, 0, wide_block()) for i in range(800))]))
        assert BUDGET_MIB / 4 - 2 < stored <= BUDGET_MIB / 4
        assert "max_memory_mib" in reason
        assert resident_mib(server.pid) - before < BUDGET_MIB + SLACK_MIB
        fill(stub, 3)
        assert client.describe_table("t").inserts == 3


@pytest.mark.parametrize("max_bytes", [MEBIBYTE, 0])
@pytest.mark.parametrize("has_log", [False, True])
def test_payloads_count_as_bytes_of_their_table(tmp_path: Path, has_log: bool, max_bytes: int) -> None:
    """Of 100 MB of payloads as much stays as max_bytes allows, or the budget where there is no such limit."""
    log = ("--replay.storage.folder", str(tmp_path)) if has_log else ()
    options = ("--replay.max-memory-mib", str(BUDGET_MIB), *log)
    with server_process("127.0.0.1:0", *options, forked=False) as server, ReplayClient(server.address) as client:
        client.create_table(wide_table(signature=NARROW, max_bytes=max_bytes, payload_bytes=65_536))
        before = resident_mib(server.pid)
        with open_channel(server.address) as channel:
            stub = replay_pb2_grpc.ReplayServiceStub(channel)
            steps = (step(0, number, b"x", b"p" * 65_536) for number in range(1600))
            list(stub.Append(iter([opening("a", signature=NARROW), *steps]), timeout=WAIT_S))
        held = client.describe_table("t").held_bytes
        limit = max_bytes or BUDGET_MIB * MEBIBYTE // 2
        assert 0.9 * limit < held <= limit
        assert resident_mib(server.pid) - before < BUDGET_MIB + SLACK_MIB


def test_table_larger_than_the_budget_gives_up_its_oldest_items(server: ServerProcess) -> None:
    """A table without a limit holds half of the budget, the newest, and says so in its evictions."""
    with open_channel(server.address) as channel, ReplayClient(server.address) as client:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        client.create_table(wide_table())
        fill(stub, BUDGET_MIB)
        described = client.describe_table("t")
        assert BUDGET_MIB / 2 - 3 <= described.items < BUDGET_MIB / 2
        assert described.evictions == BUDGET_MIB - described.items


def test_batch_too_large_is_refused_before_it_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is known from the draw: not one block is read."""
    with local_server(max_message_bytes=4 * MEBIBYTE) as server, open_channel(server.address) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        with ReplayClient(server.address) as client:
            client.create_table(wide_table())
        fill(stub, 8)
        reads: list[object] = []
        monkeypatch.setattr(server.replay.find("t").store.blocks, "read", lambda *chunks: reads.append(chunks))
        asked = pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=8, without_replacement=True), credit=1)
        with pytest.raises(grpc.RpcError, match=naming("batch_size")):
            next(stub.Sample(iter([asked]), timeout=WAIT_S))
        assert not reads


def test_batch_of_more_steps_than_are_looked_up_is_refused(server: ServerProcess) -> None:
    """Finding where a batch lies takes memory for each of its chunks: the call is refused before any is found."""
    with open_channel(server.address) as channel, ReplayClient(server.address) as client:
        client.create_table(make_config("t", max_items=100, max_item_steps=65_535))
        asked = pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=65), credit=1)
        with pytest.raises(grpc.RpcError, match=naming("batch_size 65 65535 64")):
            next(replay_pb2_grpc.ReplayServiceStub(channel).Sample(iter([asked]), timeout=WAIT_S))


def test_messages_that_wait_take_no_more_than_their_share() -> None:
    """Behind a full queue so many messages wait as there is room for; the next is refused with the reason."""
    with ExitStack() as stack:
        server: LocalServer = stack.enter_context(local_server(stored_limit=64 * MEBIBYTE))
        stub = replay_pb2_grpc.ReplayServiceStub(stack.enter_context(open_channel(server.address)))
        client = stack.enter_context(ReplayClient(server.address))
        client.create_table(wide_table(rate_limiter=RateLimiterConfig(queue_size=1)))
        fill(stub, 1)
        table = server.replay.find("t")
        waiting = []
        for number in range(4):  # of 5 MiB each, in memory three times
            blocks = [Chunk(0, i, 1, 1, 0, (wide_block(),)) for i in range(5)]
            data = pb.AppendRequest(data=pack_append(blocks, [make_items(0, [(0, 0, 1)])]))
            messages = iter([opening(f"actor-{number}"), data])
            if number < 2:
                waiting.append(stub.Append(messages, timeout=WAIT_S))
                wait_until(lambda n=number: server.admission.waiting(table, "insert") == n + 1, "a message to wait")  # type: ignore[misc]
            else:
                assert str(64 * MEBIBYTE // 2) in refusal(stub, messages)[1]
        client.reset_table("t")
        assert list(next(waiting[0]).next_steps) == [0]
        assert list(next(waiting[0]).next_steps) == [5]
        for call in waiting:
            call.cancel()
        wait_until(lambda: server.replay.budget.message_bytes == 0, "the messages to leave")


def test_table_of_a_hundred_million_items_takes_memory_only_as_it_fills(server: ServerProcess) -> None:
    """Whatever the selectors, an empty table is small: its columns are memory once there are items."""
    with ReplayClient(server.address) as client:
        client.create_table(make_config("first"))
        for kind in SelectorKind:
            selector, before = SelectorConfig(kind), resident_mib(server.pid)
            client.create_table(make_config(kind.value, sampler=selector, remover=selector, max_items=10**8))
            assert resident_mib(server.pid) - before < 8, kind
