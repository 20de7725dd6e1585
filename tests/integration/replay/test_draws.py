"""Draws: batches a caller sizes and accounts for itself, as one that samples several servers does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc
import pytest

from tests.support.replay_service import local_server, open_appender
from tests.support.replay_streams import make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import RateLimiterConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.writing.appender import StreamAppender
from tidemill.rpc.channel import open_channel


def write(appender: StreamAppender, first: int) -> None:
    """Append one chunk of four steps with an item at each."""
    appender.append([make_chunk(0, 0, first, 4)], [make_items(0, [(0, i, 1) for i in range(4)])], timeout_s=WAIT_S)


@contextmanager
def table_of(items: int, limiter: RateLimiterConfig) -> Iterator[tuple[str, StreamAppender]]:
    """Serve table `t` with so many items, a multiple of 4; yield its address and the appender that filled it."""
    with local_server() as server, ReplayClient(server.address) as client:
        client.create_table(make_config(limiter=limiter))
        with open_appender(server.address) as appender:
            for first in range(0, items, 4):
                write(appender, first)
            assert appender.flush(WAIT_S)
            yield server.address, appender


def is_held_back(address: str) -> bool:
    """True if the rate limiter holds back an insert."""
    with ReplayClient(address) as client:
        return client.describe_table("t").insert_blocked


def answers(address: str, draws: Sequence[pb.Draw]) -> list[pb.SampleResponse]:
    """Send draws in one message and return their answers."""
    opening = pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=8), draws=draws)
    with open_channel(address) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        return list(stub.Sample(iter([opening]), timeout=WAIT_S))


def test_draws_are_answered_in_order_with_their_own_sizes() -> None:
    """A draw of 3, a look and a draw of 5 come as batches of 3, 0 and 5 items, each with the table's state."""
    with table_of(4, RateLimiterConfig()) as (address, _):
        found = answers(address, [pb.Draw(items=3), pb.Draw(), pb.Draw(items=5)])
    assert [len(answer.keys) for answer in found] == [3, 0, 5]
    assert {(answer.table_items, answer.total_weight, answer.env_steps) for answer in found} == {(4, 4.0, 4)}


def test_draw_below_min_size_does_not_wait() -> None:
    """The caller holds the limiter over all its servers: one item is enough for a draw."""
    with table_of(4, RateLimiterConfig(min_size=50)) as (address, _):
        assert len(answers(address, [pb.Draw(items=8, counted=8)])[0].keys) == 8


def test_counted_samples_let_inserts_go_on() -> None:
    """An insert held back by the ratio is let go by samples that were drawn elsewhere and are counted here."""
    limiter = RateLimiterConfig(min_size=4, samples_per_insert=2.0, error_buffer=4.0)
    with table_of(8, limiter) as (address, appender):
        write(appender, 8)  # diff 8, beyond the buffer
        wait_until(lambda: is_held_back(address), "the insert to be held back")
        assert not appender.flush(0.0)
        first, second = answers(address, [pb.Draw(items=2, counted=0), pb.Draw(items=0, counted=6)])
        assert (first.limiter_diff, second.limiter_diff) == (8.0, 10.0)  # 8 - 6, then the insert's 8 more
        assert appender.flush(WAIT_S)


def test_counted_samples_are_bounded_by_the_batch() -> None:
    """Four thousand million samples said to be drawn elsewhere count as a batch of 8: the table continues."""
    limiter = RateLimiterConfig(min_size=4, samples_per_insert=1.0, error_buffer=16.0)
    with table_of(8, limiter) as (address, _):  # diff 4
        draws = [pb.Draw(items=2, counted=2**32 - 1), pb.Draw(items=0, counted=2**32 - 1), pb.Draw(items=8, counted=8)]
        found = answers(address, draws)
        assert [answer.limiter_diff for answer in found] == [-4.0, -12.0, -20.0]
        with ReplayClient(address) as client:
            assert client.describe_table("t").limiter_diff == -20.0


@pytest.mark.parametrize(
    "draws, message",
    [([pb.Draw(items=9)], "draws.items is 9"), ([pb.Draw()] * 1025, "more than 1024 draws wait")],
)
def test_draw_out_of_range_is_refused_by_name(draws: list[pb.Draw], message: str) -> None:
    """Larger than the batch, or too many at a time: INVALID_ARGUMENT."""
    with table_of(4, RateLimiterConfig()) as (address, _), pytest.raises(grpc.RpcError) as caught:
        answers(address, draws)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in str(caught.value.details())
