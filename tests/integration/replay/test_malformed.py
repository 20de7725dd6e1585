"""Messages that are wrong in one thing: a clear status, nothing changed, and a server that lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from tests.support.replay_messages import MAX_MESSAGE_BYTES, data_with, opening
from tests.support.replay_service import CHUNK_LENGTH, LocalServer, local_server
from tests.support.replay_streams import make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.wire import pack_append, pack_config

INVALID, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
PRECONDITION, EXHAUSTED = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server with one table that every test leaves as it found it."""
    with local_server(MAX_MESSAGE_BYTES) as running:
        yield running


@pytest.fixture(scope="module")
def stub(server: LocalServer) -> Iterator[replay_pb2_grpc.ReplayServiceStub]:
    """A bare stub, with messages as large as it likes, and a table `t` with 8 items."""
    with grpc.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        opened = replay_pb2_grpc.ReplayServiceStub(channel)
        opened.CreateTable(pb.CreateTableRequest(config=pack_config(make_config())), timeout=WAIT_S)
        chunks = [make_chunk(0, 0, first, CHUNK_LENGTH) for first in (0, 4)]
        data = pack_append(chunks, [make_items(0, [(i // 4, i % 4, 1) for i in range(8)])])
        list(opened.Append(iter([opening("filler"), pb.AppendRequest(data=data)]), timeout=WAIT_S))
        yield opened


def columns_named(*columns: tuple[str, str, list[int], int]) -> dict[str, Any]:
    """Return the `signature` field of an opening."""
    return {"signature": [pb.Column(name=n, dtype=d, shape=s, codec=c) for n, d, s, c in columns]}  # type: ignore[arg-type]


def state(server: LocalServer) -> tuple[Any, ...]:
    """Return the state that a refused message must leave unchanged."""
    table = server.replay.find("t")
    return table.size, table.counters.inserts, table.total_weight, server.replay.chunks, server.replay.env_steps


def assert_lives(server: LocalServer, stub: replay_pb2_grpc.ReplayServiceStub, before: tuple[Any, ...]) -> None:
    """Check that the server answers, and that nothing has changed."""
    described = stub.DescribeTable(pb.DescribeTableRequest(name="t"), timeout=WAIT_S).table
    assert described.items == 8
    assert state(server) == before


def refusal(call: Callable[..., Any], request: object) -> tuple[grpc.StatusCode, str]:
    """Make a call that must be refused, unary or streaming; return its status and reason."""
    with pytest.raises(grpc.RpcError) as caught:
        list(_answers(call(request, timeout=WAIT_S)))
    error: Any = caught.value  # it is a grpc.Call as well
    return error.code(), error.details()


def _answers(answer: Any) -> Iterator[Any]:  # noqa: ANN401 - a message, or a stream of them
    yield from answer if isinstance(answer, Iterator) else [answer]


UINT32, UINT64 = 2**32 - 1, 2**64 - 1
GOOD_BLOCKS = make_chunk(0, 0, 0, 4).blocks
APPENDS = {
    "data first": ([data_with()], INVALID, "must be `open`"),
    "empty message": ([pb.AppendRequest()], INVALID, "must be `open`"),
    "open twice": ([opening(), opening()], INVALID, "must be `data`"),
    "bad actor id": ([opening("../../etc")], INVALID, "actor_id is '../../etc'"),
    "long actor id": ([opening("a" * 129)], INVALID, "actor_id is 'aaa"),
    "no environment": ([opening(env_count=0)], INVALID, "env_count is 0"),
    "too many environments": ([opening(env_count=65)], EXHAUSTED, "env_count is 65"),
    "absurdly many environments": ([opening(env_count=UINT32)], INVALID, f"env_count is {UINT32}"),
    "no table": ([opening(tables=[])], INVALID, "number of tables is 0"),
    "many tables": ([opening(tables=["t"] * 17)], INVALID, "number of tables is 17"),
    "unknown table": ([opening(tables=["nowhere"])], MISSING, "no table 'nowhere'"),
    "chunk length 0": ([opening(chunk_length=0)], INVALID, "chunk_length is 0"),
    "chunk length too long": ([opening(chunk_length=1025)], INVALID, "chunk_length is 1025"),
    "no signature": ([opening(signature=[])], INVALID, "number of columns is 0"),
    "other signature": ([opening(**columns_named(("x", "float32", [2], 1)))], PRECONDITION, "has columns ['x']"),
    "unknown dtype": ([opening(**columns_named(("x", "object", [2], 1)))], INVALID, "dtype of column 'x' is 'object'"),
    "unknown codec": ([opening(**columns_named(("x", "int8", [2], 9)))], INVALID, "codec of column 'x' is 9"),
    "unset codec": ([opening(**columns_named(("x", "int8", [2], 0)))], INVALID, "codec of column 'x' is 0"),
    "shape with 0": ([opening(**columns_named(("x", "int8", [2, 0], 1)))], INVALID, "shape of column 'x' is (2, 0)"),
    "nine dimensions": ([opening(**columns_named(("x", "int8", [1] * 9, 1)))], INVALID, "at most 8 dimensions"),
    "huge shape": (
        [opening(**columns_named(("x", "float64", [UINT32] * 4, 1)))],
        INVALID,
        "bytes of a step of column 'x' is",
    ),
    "column twice": (
        [opening(**columns_named(("x", "int8", [], 1), ("x", "int8", [], 1)))],
        INVALID,
        "each must be there once",
    ),
    "gap": ([opening(), data_with(first_step=4)], PRECONDITION, "leaves a gap"),
    "gap beyond int64": ([opening(), data_with(first_step=2**64 - 4)], PRECONDITION, "leaves a gap"),
    "too many steps": ([opening(), data_with(step_count=UINT32)], INVALID, f"step_count is {UINT32}"),
    "no columns": ([opening(), data_with(columns=[])], INVALID, "columns has 0 blocks"),
    "message too large": (
        [opening(), data_with(columns=[b"x" * (MAX_MESSAGE_BYTES + 1), *GOOD_BLOCKS[1:]])],
        EXHAUSTED,
        "larger than max",
    ),
}


@pytest.mark.parametrize("name", APPENDS)
def test_malformed_append_is_refused(server: LocalServer, stub: replay_pb2_grpc.ReplayServiceStub, name: str) -> None:
    """Each kind of wrong message ends the call with its status and reason, and stores nothing."""
    messages, code, reason = APPENDS[name]
    before = state(server)
    status, details = refusal(stub.Append, iter(messages))
    assert status == code
    assert reason in details
    assert_lives(server, stub, before)


@pytest.mark.parametrize("name", ["chunk_indices", "lengths"])
def test_item_with_the_largest_number_is_refused(
    server: LocalServer, stub: replay_pb2_grpc.ReplayServiceStub, name: str
) -> None:
    """A wrong item takes its whole message with it, the good chunk included."""
    message = data_with()
    getattr(message.data.items[0], name)[0] = UINT32
    before = state(server)
    status, details = refusal(stub.Append, iter([opening(), message]))
    assert status == INVALID
    assert f"{name}[0] is {UINT32}" in details
    assert_lives(server, stub, before)


SAMPLES = {
    "credit first": ([pb.SampleRequest(credit=1)], INVALID, "must have `open`"),
    "batch of 0": (
        [pb.SampleRequest(open=pb.SampleOpen(table="t"), credit=1)],
        INVALID,
        "batch_size is 0",
    ),
    "batch of 65537": (
        [pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=65_537), credit=1)],
        INVALID,
        "batch_size is 65537",
    ),
    "unknown table": (
        [pb.SampleRequest(open=pb.SampleOpen(table="nowhere", batch_size=1), credit=1)],
        MISSING,
        "no table 'nowhere'",
    ),
    "open twice": (
        [pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=1), credit=1)] * 2,
        INVALID,
        "`open` is set again",
    ),
    "more distinct items than fit": (
        [pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=101, without_replacement=True), credit=1)],
        INVALID,
        "batch_size is 101",
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_malformed_sample_is_refused(server: LocalServer, stub: replay_pb2_grpc.ReplayServiceStub, name: str) -> None:
    """Each kind of wrong message ends the call with its status and reason."""
    messages, code, reason = SAMPLES[name]
    status, details = refusal(stub.Sample, iter(messages))
    assert status == code
    assert reason in details
    assert_lives(server, stub, state(server))


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"name": "Not Good"}, "table name is 'Not Good'"),
    "max_items 0": ({"max_items": 0}, "max_items is 0"),
    "max_items 2^63": ({"max_items": 2**63}, f"max_items is {2**63}"),
    "max_bytes": ({"max_bytes": UINT64}, f"max_bytes is {UINT64}"),
    "max_item_steps": ({"max_item_steps": 0}, "max_item_steps is 0"),
    "sampler": ({"sampler": pb.Selector()}, "sampler.kind is 0"),
    "remover": ({"remover": pb.Selector(kind=99)}, "remover.kind is 99"),  # type: ignore[arg-type]
    "exponent": (
        {"sampler": pb.Selector(kind=pb.SELECTOR_KIND_PRIORITIZED, priority_exponent=float("nan"))},
        "priority_exponent is nan",
    ),
    "limiter": ({"rate_limiter": pb.RateLimiter(samples_per_insert=-1)}, "samples_per_insert is -1.0"),
    "min_size": ({"rate_limiter": pb.RateLimiter(min_size=101)}, "rate_limiter.min_size is 101"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_malformed_table_is_refused(server: LocalServer, stub: replay_pb2_grpc.ReplayServiceStub, name: str) -> None:
    """A configuration out of range is refused with the field and value, and creates nothing."""
    fields, reason = CONFIGS[name]
    config = pack_config(make_config("fresh"))
    for field, value in fields.items():
        config.ClearField(field)  # type: ignore[arg-type]
        config.MergeFrom(pb.TableConfig(**{field: value}))
    status, details = refusal(stub.CreateTable, pb.CreateTableRequest(config=config))
    assert status == INVALID
    assert reason in details
    assert [table.config.name for table in stub.ListTables(pb.ListTablesRequest(), timeout=WAIT_S).tables] == ["t"]


def test_malformed_update_changes_nothing(server: LocalServer, stub: replay_pb2_grpc.ReplayServiceStub) -> None:
    """A wrong priority or uneven lists leave every priority as it was."""
    before = state(server)
    for keys, priorities, reason in (
        ([1, 2], [1.0], "priorities has 1 entries, must have 2"),
        ([1], [float("inf")], "priorities[0] is inf"),
        ([1], [1e308], "priorities[0] is 1e+308, must be finite, -1e+39 to 1e+39"),
        ([1, 2], [1.0, -2e39], "priorities[1] is -2e+39"),
    ):
        request = pb.UpdatePrioritiesRequest(table="t", keys=keys, priorities=priorities)
        status, details = refusal(stub.UpdatePriorities, request)
        assert status == INVALID
        assert reason in details
    assert_lives(server, stub, before)


def test_batch_that_does_not_fit_a_message_is_refused(server: LocalServer) -> None:
    """A batch larger than the server's message limit ends the call with what to do."""
    with local_server(max_message_bytes=20_000) as small, grpc.insecure_channel(small.address) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        stub.CreateTable(pb.CreateTableRequest(config=pack_config(make_config(max_items=1000))), timeout=WAIT_S)
        requests = [opening()]
        for first in range(0, 800, 4):
            data = pack_append([make_chunk(0, 0, first, 4)], [make_items(0, [(0, 0, 1)])])
            requests.append(pb.AppendRequest(data=data))
        list(stub.Append(iter(requests), timeout=WAIT_S))
        wide = pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=200, without_replacement=True), credit=1)
        status, details = refusal(stub.Sample, iter([wide]))
        assert status == INVALID
        assert "use a smaller batch_size" in details
        assert small.replay.find("t").counters.samples == 0


def test_server_still_works_after_all_that(server: LocalServer, stub: replay_pb2_grpc.ReplayServiceStub) -> None:
    """A good actor and a good sampler are served as if nothing had happened."""
    good = [opening("good"), pb.AppendRequest(data=pack_append([make_chunk(0, 0, 0, 4)], []))]
    acknowledged = list(stub.Append(iter(good), timeout=WAIT_S))
    assert [list(answer.next_steps) for answer in acknowledged] == [[0], [4]]
    opened = pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=4), credit=2)
    batches = list(stub.Sample(iter([opened]), timeout=WAIT_S))
    assert [len(batch.keys) for batch in batches] == [4, 4]
    assert np.isfinite([batch.total_weight for batch in batches]).all()
