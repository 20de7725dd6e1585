"""Whoever is ahead waits: samplers for inserts, actors for samples."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.naming import naming
from tests.support.replay_service import CHUNK_LENGTH, LocalServer, local_server, open_appender, write
from tests.support.replay_streams import SIGNATURE, make_chunk, make_config
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import Unavailable
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import RateLimiterConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.writing.appender import StreamAppender
from tidemill.rpc.channel import open_channel
from tidemill.services.replay.admission import Side


@pytest.fixture
def clock() -> Clock:
    """A clock."""
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Iterator[LocalServer]:
    """An empty server with that clock."""
    with local_server(clock=clock) as running:
        yield running


def wait_until_held_back(server: LocalServer, side: Side) -> None:
    """Wait until a call of one side waits at the table."""
    table = server.replay.find("t")
    wait_until(lambda: server.admission.waiting(table, side) == 1, f"the {side} to be held back")


def test_sample_blocks_below_min_size_and_goes_on_at_once(
    server: LocalServer, client: ReplayClient, clock: Clock
) -> None:
    """A sampler waits, and says so in the description, until the insert that reaches min_size."""
    config = make_config(limiter=RateLimiterConfig(min_size=8))
    with ReplaySampler([server.address], config, 4, max_in_flight_batches=1, create=True) as stream:
        wait_until(lambda: server.replay.tables, "the table")
        with open_appender(server.address) as appender:
            write(appender, range(4))
            assert appender.flush(WAIT_S)
            wait_until_held_back(server, "sample")
            clock.now_s += 7.0
            assert stream.take(0.01) is None
            assert client.describe_table("t").sample_blocked
            write(appender, range(4, 8))
            assert stream.take(WAIT_S) is not None
        described = client.describe_table("t")
        assert described.sample_blocked_s == 7.0
        assert described.insert_blocked_s == 0


def test_insert_blocks_when_ahead_and_the_owner_waits_for_room(
    server: LocalServer, client: ReplayClient, clock: Clock
) -> None:
    """Acknowledgements stop while inserts are ahead; `append` then waits, and samples let it continue."""
    config = make_config(limiter=RateLimiterConfig(1, samples_per_insert=1.0, error_buffer=8.0))
    client.create_table(config)
    stop = threading.Event()
    appender = StreamAppender(
        server.address, "actor", 1, SIGNATURE, ["t"], CHUNK_LENGTH, max_in_flight_chunks=2, stop=stop
    )
    with appender:
        write(appender, range(12))  # diff 11: the next insert waits
        assert appender.flush(WAIT_S)
        write(appender, range(12, 20))
        wait_until_held_back(server, "insert")
        clock.now_s += 7.0
        assert not appender.flush(0.0)
        assert appender.unacknowledged_chunks == 2
        with pytest.raises(Unavailable, match=naming("2 0.05")):
            appender.append([make_chunk(0, 0, 20, 4)], timeout_s=0.05)
        assert appender.blocked_s >= 0.05
        described = client.describe_table("t")
        assert described.insert_blocked
        assert described.items == 12
        with ReplaySampler([server.address], config, 8, max_in_flight_batches=1) as stream:
            assert stream.take(WAIT_S) is not None
            assert stream.take(WAIT_S) is not None
            assert appender.flush(WAIT_S)
        assert client.describe_table("t").insert_blocked_s == 7.0
        stop.set()
        write_more = [make_chunk(0, 0, first, 4) for first in (20, 24, 28)]
        assert appender.append(write_more)  # there is room: a call larger than the limit goes alone


def test_stopped_owner_does_not_wait(server: LocalServer) -> None:
    """A set stop event ends a wait for room, with nothing taken."""
    stop = threading.Event()
    with StreamAppender(server.address, "a", 1, SIGNATURE, ["none"], 4, max_in_flight_chunks=1, stop=stop) as appender:
        assert appender.append([make_chunk(0, 0, 0, 4)])
        threading.Timer(0.1, stop.set).start()
        assert not appender.append([make_chunk(0, 0, 4, 4)])
        assert appender.unacknowledged_chunks == 1


def test_thousand_waiting_samplers_are_not_looked_at_by_each_append(
    server: LocalServer, client: ReplayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append looks at the first in line only, however many samplers the rate limiter holds back."""
    config = make_config(limiter=RateLimiterConfig(1, samples_per_insert=0.001, error_buffer=1.0), max_items=10_000)
    client.create_table(config)
    table = server.replay.find("t")
    has_draws, looks = table.has_draws, []

    def counted(*batch: Any) -> bool:  # noqa: ANN401 - the method's arguments
        looks.append(batch)
        return has_draws(*batch)

    monkeypatch.setattr(table, "has_draws", counted)
    with open_appender(server.address) as appender, open_channel(server.address) as channel:
        write(appender, range(4))
        assert appender.flush(WAIT_S)
        opening = pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=4), credit=1)
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        calls = [stub.Sample(iter([opening])) for _ in range(1001)]
        wait_until(lambda: server.admission.waiting(table, "sample") == 1000, "a thousand samplers to wait")
        looks.clear()
        for first in range(4, 44, 4):
            write(appender, range(first, first + 4))
            assert appender.flush(WAIT_S)
        assert len(looks) <= 10 * 4
        for call in calls:
            call.cancel()
        wait_until(lambda: server.admission.waiting(table, "sample") == 0, "the samplers to leave")
