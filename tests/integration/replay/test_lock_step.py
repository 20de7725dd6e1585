"""Appends and draws at step counts, against a real server: what comes early waits, what comes late is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.damage import flip, halve
from tests.support.naming import because, naming
from tests.support.replay_log import kill, options, write
from tests.support.replay_service import LocalServer, items_of, local_server, open_appender, server_process
from tests.support.replay_streams import make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import DataLoss, FailedPrecondition, FatalError, Reason
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.sampling.schedule import Schedule, SeededDraw
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.writing.append_message import AppendMessage
from tidemill.replay.writing.appender import StreamAppender

_TABLE = make_config(max_items=64, max_item_steps=1)


def _message(stream: int, first: int, at: int) -> AppendMessage:
    message = AppendMessage.of([make_chunk(stream, 0, first, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])
    message.request.data.at_step_count = at
    return message


def _store(appender: StreamAppender, stream: int, first: int, at: int) -> None:
    appender.append_messages([_message(stream, first, at)])


@contextmanager
def _stream(address: str, at: Callable[[int], int], first: int = 0, in_flight: int = 3) -> Iterator[SampleStream]:
    def draw(number: int) -> SeededDraw:
        return SeededDraw(number, at(number))

    with closing(
        SampleStream(
            ShardDirectory([address]), _TABLE, 8, schedule=Schedule(draw, first), max_in_flight_batches=in_flight
        )
    ) as stream:
        yield stream


def _take(stream: SampleStream) -> list[tuple[int, int]]:
    batch = stream.take(WAIT_S)
    assert batch is not None
    return items_of(batch)


def test_messages_are_stored_in_the_order_of_their_step_counts(server: LocalServer, client: ReplayClient) -> None:
    """The second actor's message comes first and waits for the first actor's; its items have the greater numbers."""
    client.create_table(_TABLE)
    with open_appender(server.address, "a") as a, open_appender(server.address, "b") as b:
        assert a.opened(WAIT_S)
        assert b.opened(WAIT_S)
        _store(b, 1, 0, at=4)
        wait_until(lambda: server.replay.budget.message_bytes > 0, "the message to wait")
        assert server.replay.chunks == 0
        _store(a, 0, 0, at=0)
        assert a.flush(WAIT_S)
        assert b.flush(WAIT_S)
    with ReplaySampler([server.address], _TABLE, 8, without_replacement=True, item_counts=True) as sampler:
        batch = sampler.take(WAIT_S)
    assert batch is not None
    assert batch.ages is not None
    by_age = sorted(zip(batch.ages.tolist(), items_of(batch), strict=True), reverse=True)
    assert [item for _, item in by_age] == [(stream, step) for stream in (0, 1) for step in range(4)]


def test_message_that_comes_too_late_is_refused_and_a_repeated_one_is_not(
    server: LocalServer, client: ReplayClient
) -> None:
    """What is stored already is acknowledged; what is new cannot be stored at a count that has passed."""
    client.create_table(_TABLE)
    with open_appender(server.address, "a") as a:
        for at in (0, 0):
            _store(a, 0, 0, at=at)
        assert a.flush(WAIT_S)
        assert server.replay.streams.step_count == 4
        _store(a, 0, 4, at=3)
        with pytest.raises(
            FailedPrecondition, match=naming("at_step_count 3 4"), check=because(Reason.STEP_COUNT_PASSED)
        ):
            a.flush(WAIT_S)


def test_batch_waits_for_its_step_count_and_is_the_same_again(server: LocalServer, client: ReplayClient) -> None:
    """Two streams, one of which loses its connection, draw the same batches; none before its count is reached."""
    client.create_table(_TABLE)
    with (
        open_appender(server.address, "a") as a,
        _stream(server.address, lambda number: 8 + 8 * (number // 3)) as stream,
    ):
        _store(a, 0, 0, at=0)
        assert a.flush(WAIT_S)
        assert server.replay.find("t").counters.samples == 0
        _store(a, 0, 4, at=4)
        first = [_take(stream) for _ in range(2)]
        stream.again()
        assert _take(stream) == first[1]
        assert stream.reconnects >= 1
        with _stream(server.address, lambda _: 8, first=1, in_flight=1) as other:
            assert _take(other) == first[1]
        third = _take(stream)
        for place in (8, 12):
            _store(a, 0, place, at=place)
        later = _take(stream)
    assert first[0] != first[1] != third
    assert {step for batch in (*first, third) for _, step in batch} <= set(range(8))
    assert {step for _, step in later} & set(range(8, 16)), "it was drawn before its count was reached"


def test_draw_that_comes_too_late_is_refused(server: LocalServer, client: ReplayClient) -> None:
    """The table is not what it was any more: the stream says so instead of giving another batch."""
    client.create_table(_TABLE)
    with open_appender(server.address, "a") as a:
        _store(a, 0, 0, at=0)
        assert a.flush(WAIT_S)
    with (
        _stream(server.address, lambda _: 2) as stream,
        pytest.raises(FailedPrecondition, match=naming("at_step_count 2 4")),
    ):
        stream.take(WAIT_S)


def test_lost_table_ends_the_stream(server: LocalServer) -> None:
    """A server without a log has nothing after its restart: there is nothing to repeat."""
    with _stream(server.address, lambda _: 0) as stream, pytest.raises(FatalError, match=naming("table")):
        stream.take(WAIT_S)


def test_no_batch_is_drawn_once_items_were_given_up_for_want_of_memory() -> None:
    """When memory ran out depends on what else was held just then: a seed would draw others in another run."""
    with (
        local_server(stored_limit=8192) as server,
        ReplayClient(server.address) as client,
        open_appender(server.address, "a") as a,
    ):
        client.create_table(_TABLE)
        with _stream(server.address, lambda _: 4, in_flight=1) as stream:
            _store(a, 0, 0, at=0)
            assert len(_take(stream)) == 8
            step = 4
            while not server.replay.memory.evictions:
                _store(a, 0, step, at=step)
                assert a.flush(WAIT_S)
                step += 4
                assert step < 10_000
        with (
            _stream(server.address, lambda _: step) as stream,
            pytest.raises(DataLoss, match=naming("replay.max_memory_mib")),
        ):
            stream.take(WAIT_S)


@pytest.mark.parametrize(
    "file,damage",
    [("", flip), ("00000001.log", flip), ("00000001.log", halve), ("00000001.snapshot", flip)],
    ids=["intact", "flipped", "cut", "snapshot"],
)
def test_no_batch_is_drawn_from_a_log_that_was_damaged(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    """A killed server comes back without some items, or without priorities: a seed would draw others than before."""
    arguments = options(tmp_path, snapshot_every_s=0)
    with server_process("127.0.0.1:0", *arguments) as first, ReplayClient(first.address) as client:
        client.create_table(_TABLE)
        with open_appender(first.address) as appender:
            for step in range(0, 40, 4):
                write(appender, step)
            assert appender.flush(WAIT_S)
        client.checkpoint()
        with _stream(first.address, lambda _: 40) as stream:
            before = _take(stream)
        kill(first)
    if file:
        damage(tmp_path / file)
    with server_process("127.0.0.1:0", *arguments) as again, _stream(again.address, lambda _: 40) as stream:
        if not file:
            assert _take(stream) == before
        else:
            with pytest.raises(DataLoss, match=naming("table items log records")):
                stream.take(WAIT_S)
