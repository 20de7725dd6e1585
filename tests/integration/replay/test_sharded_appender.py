"""An actor's writer over shards: where it writes, what it says when it moves, what it waits for."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from tests.support.naming import naming
from tests.support.proxy import Proxy
from tests.support.replay_service import CHUNK_LENGTH
from tests.support.replay_shards import local_shards
from tests.support.replay_streams import SIGNATURE, make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import Unavailable
from tidemill.replay.client import ReplayClient
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.shards.placement import ShardPlacement, ranked
from tidemill.replay.writing.append_call import StreamRestarted
from tidemill.replay.writing.appender import StreamAppender

_FIRST, _SECOND = (int(name) for name in ranked("a", ["0", "1"]))


def appender_of(
    directory: ShardDirectory, stop: threading.Event | None = None, placement: ShardPlacement | None = None
) -> StreamAppender:
    """Return the writer of actor `a`, which may have two chunks unacknowledged."""
    return StreamAppender(
        directory,
        "a",
        1,
        SIGNATURE,
        ("t",),
        CHUNK_LENGTH,
        max_in_flight_chunks=2,
        stop=stop,
        placement=placement,
    )


def write(appender: StreamAppender, number: int, timeout_s: float = WAIT_S) -> bool:
    """Append a chunk with an item at each of its steps."""
    items = make_items(0, [(0, i, 1) for i in range(CHUNK_LENGTH)])
    return appender.append([make_chunk(0, 0, number * CHUNK_LENGTH, CHUNK_LENGTH)], [items], timeout_s=timeout_s)


def items_at(address: str) -> int:
    """Return how many items a server holds."""
    with ReplayClient(address) as client:
        return client.describe_table("t").items


def test_actor_writes_to_the_shard_its_name_prefers_and_moves_when_that_is_gone() -> None:
    """The dead shard's unacknowledged chunks are dropped and counted; the streams start from scratch on the other.

    The actor is busy elsewhere while its shard dies: it is known at once when it writes again.
    """
    with local_shards(2, make_config()) as servers, Proxy(servers[_FIRST].address) as proxy:
        addresses = [server.address for server in servers]
        addresses[_FIRST] = proxy.address
        placement = ShardPlacement("a")
        with (
            closing(ShardDirectory(addresses)) as directory,
            appender_of(directory, placement=placement) as appender,
        ):
            assert appender.address == addresses[_FIRST]
            assert appender.opened(WAIT_S)
            assert appender.superseded_epoch == 0
            assert write(appender, 0)
            assert appender.flush(WAIT_S)
            with proxy.refusing():
                assert write(appender, 1)
                assert write(appender, 2)
                wait_until(lambda: placement.is_dead, "the shard to be known as dead")
                with pytest.raises(StreamRestarted, match=naming("shard", _SECOND)):
                    write(appender, 3)
                assert (appender.address, appender.restarts, appender.dropped_chunks) == (addresses[_SECOND], 1, 2)
                assert write(appender, 0)
                assert appender.flush(WAIT_S)
        assert [items_at(servers[n].address) for n in (_FIRST, _SECOND)] == [CHUNK_LENGTH, CHUNK_LENGTH]


def test_flush_leaves_a_dead_shard() -> None:
    """What the dead shard did not acknowledge is dropped, so nothing is left to wait for; the next chunk says so."""
    with local_shards(2, make_config()) as servers, Proxy(servers[_FIRST].address) as proxy:
        addresses = [server.address for server in servers]
        addresses[_FIRST] = proxy.address
        with closing(ShardDirectory(addresses)) as directory, appender_of(directory) as appender:
            assert write(appender, 0)
            assert appender.flush(WAIT_S)
            with proxy.refusing():
                assert write(appender, 1)
                assert appender.flush(WAIT_S)
            assert (appender.address, appender.restarts, appender.dropped_chunks) == (addresses[_SECOND], 1, 1)
            with pytest.raises(StreamRestarted, match=naming("shard", _SECOND)):
                write(appender, 2)


def test_shard_that_is_back_soon_keeps_its_actor_and_everything() -> None:
    """A break of a moment moves nobody: the streams are resumed and what was underway is sent again."""
    with local_shards(2, make_config()) as servers, Proxy(servers[_FIRST].address) as proxy:
        addresses = [server.address for server in servers]
        addresses[_FIRST] = proxy.address
        placement = ShardPlacement("a", dead_s=WAIT_S)
        with closing(ShardDirectory(addresses)) as directory, appender_of(directory, placement=placement) as appender:
            assert write(appender, 0)
            assert appender.flush(WAIT_S)
            with proxy.refusing():
                assert write(appender, 1)
                wait_until(lambda: proxy.refused > 1, "attempts without success")
                assert not appender.flush(0.0)
            assert appender.flush(WAIT_S)
            assert (appender.address, appender.restarts, appender.dropped_chunks) == (addresses[_FIRST], 0, 0)
        assert items_at(servers[_FIRST].address) == 2 * CHUNK_LENGTH


def test_append_waits_for_a_name_to_be_resolved_and_says_when_it_is_not() -> None:
    """Nothing is taken before there is a shard; `stop` ends the wait."""
    stop = threading.Event()

    def nobody(_: str) -> list[str]:
        raise OSError("no such name")

    directory = ShardDirectory(["dns:///replay:1"], every_s=0.05, resolve=nobody)
    with closing(directory), appender_of(directory, stop) as appender:
        with pytest.raises(Unavailable, match=naming("0.3")):
            write(appender, 0, timeout_s=0.3)
        assert (appender.address, appender.opened(0.0), appender.unacknowledged_chunks) == (None, False, 0)
        stop.set()
        assert not write(appender, 0)


def test_looking_for_room_does_not_wait_until_the_shard_may_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop asks for room, and its other tasks continue; `append` waits no longer for it than it may."""
    with (
        local_shards(2, make_config()) as servers,
        closing(ShardDirectory([server.address for server in servers])) as directory,
        appender_of(directory) as appender,
    ):
        assert appender.opened(WAIT_S)
        waits = list[float]()

        def flush(timeout_s: float) -> bool:
            waits.append(timeout_s)
            return False

        monkeypatch.setattr(appender._appender, "flush", flush)
        monkeypatch.setattr(appender._placement, "choose", lambda _: str(_SECOND))
        assert appender.has_room(1)
        assert write(appender, 0, timeout_s=0.0)
        assert waits == [0.0, 0.0]
