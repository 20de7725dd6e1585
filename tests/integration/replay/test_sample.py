"""Sample streams over real connections: credit, cuts, and several samplers of a queue."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.proxy import Proxy
from tests.support.replay_service import LocalServer, items_of, open_appender, write
from tests.support.replay_streams import FIFO, make_config
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import RateLimiterConfig


def test_sample_stream_goes_on_after_a_cut(server: LocalServer, client: ReplayClient) -> None:
    """Batches keep coming after the connection was reset."""
    config = make_config()
    client.create_table(config)
    with open_appender(server.address) as appender:
        write(appender, range(8))
        assert appender.flush(WAIT_S)
    with Proxy(server.address) as proxy, ReplaySampler([proxy.address], config, 4, max_in_flight_batches=2) as stream:
        for _ in range(3):
            for _ in range(4):  # more than the credit: at least one of them was asked for after the cut
                assert stream.take(WAIT_S) is not None
            proxy.cut()
        assert proxy.connections >= 3
    assert stream.take(0.0) is None


@pytest.mark.parametrize("credit", [1, 3])
def test_server_never_sends_more_batches_than_granted(server: LocalServer, client: ReplayClient, credit: int) -> None:
    """With a credit of n and nobody taking, exactly n batches are drawn; each one taken asks for one more."""
    config = make_config()
    client.create_table(config)
    with open_appender(server.address) as appender:
        write(appender, range(8))
        assert appender.flush(WAIT_S)
    with ReplaySampler([server.address], config, 10, max_in_flight_batches=credit) as stream:
        for taken in range(4):
            expected = 10 * (credit + taken)
            wait_until(lambda n=expected: client.describe_table("t").samples == n, "the granted batches")  # type: ignore[misc]
            assert client.describe_table("t").samples == expected
            assert stream.take(WAIT_S) is not None


def test_queue_hands_each_item_to_one_of_two_samplers_in_order(server: LocalServer, client: ReplayClient) -> None:
    """A queue gives every item once, over all samplers, and its writer waits for room."""
    config = make_config(sampler=FIFO, max_times_sampled=1, limiter=RateLimiterConfig(queue_size=8))
    client.create_table(config)
    with (
        open_appender(server.address) as appender,
        ReplaySampler([server.address], config, 4, max_in_flight_batches=1) as first,
        ReplaySampler([server.address], config, 4, max_in_flight_batches=1) as second,
    ):
        writer = threading.Thread(target=write, args=(appender, range(80)))
        writer.start()
        seen: list[tuple[int, int]] = []
        deadline = time.monotonic() + WAIT_S
        while len(seen) < 80 and time.monotonic() < deadline:
            for stream in (first, second):  # which of them gets a batch is up to the server
                batch = stream.take(0.05)
                got = items_of(batch) if batch is not None else []
                assert got == sorted(got)
                seen += got
        writer.join(WAIT_S)
    assert sorted(seen) == [(0, step) for step in range(80)]
    assert client.describe_table("t").items == 0
