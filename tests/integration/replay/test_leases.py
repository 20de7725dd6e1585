"""Items of a queue whose batch did not reach a program: they are in the table again, in their place."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import pytest

from tests.support.naming import naming
from tests.support.numbered_steps import awaited_numbers, numbered_step, steps_table
from tests.support.proxy import Proxy
from tests.support.replay_service import LocalServer, items_of, local_server, server_process
from tests.support.replay_shards import fill, local_shards, sampling, taken
from tests.support.replay_streams import make_config
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import Unavailable
from tidemill.replay import (
    Decoding,
    ItemWindow,
    RateLimiterConfig,
    ReplayBatch,
    ReplayClient,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableAt,
    TableConfig,
    TableUpdate,
)
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.channel import open_channel


def write(address: str, table: TableConfig, count: int) -> None:
    """Store items of one step, numbered from 0."""
    with ReplayWriter(address, table, windows=ItemWindow(1), chunk_length=4) as writer:
        for number in range(count):
            writer.append(numbered_step(number))
        writer.flush(WAIT_S)


def numbers(dataset: ReplayDataset, batches: int) -> list[int]:
    """Return the numbers of the items of some batches, in order."""
    return [number for _ in range(batches) for number in next(dataset)["number"][:, -1].tolist()]


def rest(address: str, table: TableConfig) -> list[int]:
    """Return the numbers of all items that are left, in order."""
    with ReplayClient(address) as client:
        left = client.describe_table("t").items
    if not left:
        return []
    with ReplayDataset(address, table, left, timeout_s=WAIT_S, prefetch=1) as dataset:
        return numbers(dataset, 1)


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_close_gives_back_what_was_not_handed_out(threads: int) -> None:
    """Batches that were fetched ahead are in the queue again, before what came later, and each item comes once.

    Several threads hand batches out in no fixed order, so that those that are left have gaps between them.
    """
    with local_server() as server:
        table = steps_table()
        write(server.address, table, 40)
        seen = []
        for _ in range(5):
            with ReplayDataset(
                server.address, table, 2, timeout_s=WAIT_S, prefetch=6, decoding=Decoding(threads)
            ) as dataset:
                seen += numbers(dataset, 2)
        assert len(seen) == 20
        if threads < 2:
            assert seen == list(range(20))
        assert rest(server.address, table) == sorted({*range(40)} - {*seen})
        found = server.replay.find("t")
        wait_until(lambda: found.held_count == 0, "everything to be handed out")
        assert found.counters.samples == 40


@pytest.mark.parametrize("batches_per_sample", [1, 3])
def test_batches_of_one_sample_are_handed_out_one_by_one(batches_per_sample: int) -> None:
    """With several batches to a sample, too, a reader that closes takes with it only those that the program got."""
    with local_server() as server:
        table = steps_table()
        write(server.address, table, 30)
        with ReplayDataset(
            server.address, table, 2, timeout_s=WAIT_S, prefetch=2, batches_per_sample=batches_per_sample
        ) as dataset:
            assert numbers(dataset, 1) == [0, 1]
        assert rest(server.address, table) == list(range(2, 30))


def _await_half(dataset: ReplayDataset) -> None:
    """Wait until it has the part of the first of two tables, and waits for the second."""
    wait_until(lambda: dataset.take(0.0) is None and dataset._waits_for == 1, "the half of the full one")


def test_batch_of_several_queues_is_kept_until_it_is_whole() -> None:
    """One queue is empty: the time-out costs the other nothing."""
    with local_server() as server:
        full, empty = steps_table("t"), steps_table("u")
        with ReplayWriter(server.address, [full, empty], windows={"t": ItemWindow(1)}, chunk_length=4) as writer:
            for number in range(8):
                writer.append(numbered_step(number))
            writer.flush(WAIT_S)
            with ReplayDataset(server.address, {full: 0.5, empty: 0.5}, 4, timeout_s=0.3) as dataset:
                _await_half(dataset)
                for _ in range(2):
                    with pytest.raises(Exception, match=naming("table 'u'")):
                        next(dataset)
                for number in range(8, 10):
                    writer.append(numbered_step(number))
                    writer.create_item("u", last=1)
                writer.flush(WAIT_S)
                assert sorted(awaited_numbers(dataset)) == [0, 1, 8, 9]
        assert rest(server.address, full) == list(range(2, 10))


@pytest.mark.parametrize("threads", [0, 1])
def test_part_of_a_batch_that_never_became_whole_is_given_back(threads: int) -> None:
    """The reader closes while it has a batch of one queue and waits for the other."""
    with local_server() as server:
        full, empty = steps_table("t"), steps_table("u")
        write(server.address, full, 8)
        with ReplayDataset(
            server.address, {full: 0.5, empty: 0.5}, 4, timeout_s=0.3, create=True, decoding=Decoding(threads)
        ) as dataset:
            _await_half(dataset)
            with pytest.raises(Unavailable, match=naming("table 'u'")):
                next(dataset)
        assert rest(server.address, full) == list(range(8))


@pytest.mark.parametrize("threads", [1, 2])
def test_decoded_batches_of_a_call_that_broke_are_not_handed_out_twice(threads: int) -> None:
    """Their items are in the queue again and come by the next call."""
    with local_server() as server, Proxy(server.address) as proxy:
        table = steps_table()
        write(server.address, table, 40)
        with ReplayDataset(
            proxy.address, table, 2, timeout_s=WAIT_S, prefetch=2, decoding=Decoding(threads)
        ) as dataset:
            seen = numbers(dataset, 2)
            found = server.replay.find("t")
            wait_until(lambda: (found.size, found.held_count) == (28 - 2 * threads, 36), "batches to be fetched ahead")
            proxy.cut()
            wait_until(lambda: dataset.reconnects == 1, "the next call")
            seen += numbers(dataset, 18)
        assert sorted(seen) == list(range(40))


def test_part_of_a_mixed_batch_whose_call_broke_is_not_handed_out_twice() -> None:
    """One of two queues loses its connection while the batch is put together: its items come by the next call."""
    with local_server() as server, local_server() as other, Proxy(server.address) as proxy:
        first, second = steps_table("t"), steps_table("u")
        write(server.address, first, 16)
        write(other.address, second, 16)
        reconnects: list[int] = []

        def join(parts: Sequence[ReplayBatch]) -> dict[str, list[list[int]]]:
            if not reconnects:
                proxy.cut()
                wait_until(lambda: dataset.reconnects == 1, "the next call")
                reconnects.append(dataset.reconnects)
            return {"numbers": [part["number"][:, -1].tolist() for part in parts]}

        tables: dict[TableConfig | TableAt, float] = {first: 0.5, TableAt(second, other.address): 0.5}
        with ReplayDataset(proxy.address, tables, 4, timeout_s=WAIT_S, join=join) as dataset:
            batches = [next(dataset).columns["numbers"] for _ in range(8)]
        for part in range(2):
            assert [number for batch in batches for number in batch[part]] == list(range(16))


def _read(address: str, table: TableConfig, batches: int, threads: int, said: Connection) -> None:
    with ReplayDataset(address, table, 4, timeout_s=WAIT_S, prefetch=5, decoding=Decoding(threads)) as dataset:
        for _ in range(batches):
            said.send(numbers(dataset, 1))
        said.send("waiting")
        threading.Event().wait()


@pytest.mark.parametrize("batches, threads", [(1, 0), (3, 1), (1, 2)])
def test_killed_reader_takes_only_what_its_program_was_given(batches: int, threads: int) -> None:
    """SIGKILL with five batches fetched ahead, or more with threads: another reader gets all the others in order."""
    with server_process() as server:
        table = steps_table()
        write(server.address, table, 60)
        context = multiprocessing.get_context("spawn")
        heard, said = context.Pipe(duplex=False)
        reader = context.Process(target=_read, args=(server.address, table, batches, threads, said))
        reader.start()
        handed: list[int] = []
        while (message := heard.recv()) != "waiting":
            handed += message
        with ReplayClient(server.address) as client:
            decoded = Decoding().ready + threads if threads else 0
            ahead = 60 - 4 * batches - 4 * (5 + decoded)
            wait_until(lambda: client.describe_table("t").items == ahead, "batches to be fetched ahead")
            assert reader.pid is not None
            os.kill(reader.pid, signal.SIGKILL)
            reader.join(WAIT_S)
            wait_until(lambda: client.describe_table("t").items >= 60 - 4 * batches, "the batches to come back")
        left = rest(server.address, table)
        assert len(handed) == 4 * batches
        if threads < 2:
            assert handed == list(range(4 * batches))
        assert left == sorted(left)
        assert set(handed) | set(left) == set(range(60))


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_restarted_server_loses_nothing_that_was_fetched_ahead(ending: signal.Signals, tmp_path: Path) -> None:
    """A reader continues after the restart: every item comes; once, in order, if the server was not killed."""
    options = ("--folder", str(tmp_path), "--replay.storage.snapshot-every-s", "0.1")
    table = steps_table()
    with server_process("127.0.0.1:0", *options) as first:
        address = first.address
        write(address, table, 60)
        dataset = ReplayDataset(address, table, 4, timeout_s=WAIT_S, prefetch=5)
        handed = numbers(dataset, 3)
        with ReplayClient(address) as client:
            wait_until(lambda: client.describe_table("t").items == 28, "five batches to be fetched ahead")
            client.checkpoint()
        first.process.send_signal(ending)
        first.process.wait(WAIT_S)
    with server_process(address, *options), dataset:
        if ending is signal.SIGTERM:
            assert handed + numbers(dataset, 12) == list(range(60))
        while set(handed) != set(range(60)) and ending is signal.SIGKILL:
            handed += numbers(dataset, 1)


def test_queue_never_overflows_through_what_is_fetched_ahead() -> None:
    """A writer fills the queue while a reader holds batches: what comes back stands before it; none is evicted."""
    with local_server() as server:
        table = steps_table(max_items=8, rate_limiter=RateLimiterConfig(queue_size=8))
        with ReplayWriter(server.address, table, windows=ItemWindow(1), chunk_length=1) as writer:
            found = server.replay.find("t")
            for number in range(8):
                writer.append(numbered_step(number))
            writer.flush(WAIT_S)
            with ReplayDataset(server.address, table, 4, timeout_s=WAIT_S, prefetch=2):
                wait_until(lambda: found.size == 0, "two batches to be fetched ahead")
                for number in range(8, 16):
                    writer.append(numbered_step(number))
                writer.flush(WAIT_S)
                assert (found.size, found.held_count) == (8, 16)
            wait_until(lambda: found.size == 16, "the batches to come back")
            with ReplayDataset(server.address, table, 4, timeout_s=WAIT_S, prefetch=1) as dataset:
                assert numbers(dataset, 4) == list(range(16))
            assert found.counters.evictions == 0


def test_caller_that_returns_a_batch_by_name(server: LocalServer) -> None:
    """On the wire: `taken` settles a batch, `returned` gives one back, and the rest goes back when the call ends."""
    table = steps_table()
    write(server.address, table, 12)
    found = server.replay.find("t")
    requests: list[pb.SampleRequest] = [
        pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=4, settles=True), credit=3)
    ]
    asked, more = threading.Semaphore(1), iter(requests)

    def sent() -> pb.SampleRequest:
        asked.acquire()
        return next(more)

    with open_channel(server.address) as channel:
        call = replay_pb2_grpc.ReplayServiceStub(channel).Sample(iter(sent, None), timeout=WAIT_S)
        assert [next(call).number for _ in range(3)] == [1, 2, 3]
        assert (found.size, found.held_count) == (0, 12)
        requests.append(pb.SampleRequest(taken=[2], returned=[1]))
        asked.release()
        wait_until(lambda: (found.size, found.held_count) == (4, 8), "one to be settled and one to be back")
        requests.append(pb.SampleRequest(taken=[4]))
        asked.release()
        with pytest.raises(grpc.RpcError, match=naming("batch 4 1 3")):
            next(call)
    wait_until(lambda: (found.size, found.held_count) == (8, 8), "the third to be back")
    assert rest(server.address, table) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_caller_that_settles_does_so_once_the_table_has_a_limit(server: LocalServer) -> None:
    """It opened its call before that: a batch that was sent since and is not settled goes back when the call ends."""
    write(server.address, steps_table(max_times_sampled=0), 12)
    found = server.replay.find("t")
    opened = pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=4, settles=True), credit=1)
    asked = threading.Semaphore(0)

    def sent() -> Iterator[pb.SampleRequest]:
        yield opened
        asked.acquire()
        yield pb.SampleRequest(credit=1)
        asked.acquire()

    with open_channel(server.address) as channel:
        call = replay_pb2_grpc.ReplayServiceStub(channel).Sample(sent(), timeout=WAIT_S)
        assert next(call).number == 1
        server.replay.update_table(found, TableUpdate(max_times_sampled=3))
        before = found.size, found.items.times_sampled.sum()
        asked.release()
        assert next(call).number == 2
        assert found.items.underway(found.items.held()).sum() == 4
        asked.release()
        assert list(call) == []
    wait_until(lambda: (found.size, found.items.times_sampled.sum()) == before, "the batch to be back")


def test_caller_that_does_not_settle_takes_what_it_is_sent(server: LocalServer) -> None:
    """As before `settles` was there: a batch that was sent is gone."""
    write(server.address, steps_table(), 12)
    found = server.replay.find("t")
    opened = pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=4), credit=2)
    with open_channel(server.address) as channel:
        call = replay_pb2_grpc.ReplayServiceStub(channel).Sample(iter([opened]), timeout=WAIT_S)
        assert len(list(call)) == 2
    assert (found.size, found.held_count, found.counters.samples) == (4, 4, 8)


def test_shards_get_back_what_was_not_handed_out() -> None:
    """A queue over three servers, one of which is cut off for a moment: after close each item is there or was seen."""
    table = make_config(sampler=SelectorConfig(SelectorKind.FIFO), max_items=300, max_times_sampled=1)
    everything = {(shard, step) for shard in range(3) for step in range(40)}
    with local_shards(3, table) as servers, Proxy(servers[0].address) as proxy:
        for shard, server in enumerate(servers):
            fill(server.address, shard, [1.0] * 40)
        addresses = [proxy.address, *(server.address for server in servers[1:])]
        seen: list[tuple[int, int]] = []
        with sampling(addresses, table, 9, credit=3) as stream:
            for _ in range(4):
                seen += items_of(taken(stream))
            found = [server.replay.find("t") for server in servers]
            wait_until(lambda: sum(t.held_count for t in found) == 120 - len(seen), "the servers to hear of it")
            proxy.cut()
            wait_until(lambda: stream.reconnects == 1, "the shard to be connected again")
            for _ in range(3):
                seen += items_of(taken(stream))
        wait_until(lambda: sum(t.size for t in found) == sum(t.held_count for t in found), "the rest to come back")
        with sampling(addresses, table, len(everything) - len(seen), credit=1) as stream:
            seen += items_of(taken(stream))
        assert sorted(seen) == sorted(everything)
