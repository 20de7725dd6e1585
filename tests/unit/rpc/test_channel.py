"""Closing a channel beside a peer that does nothing any more."""

from __future__ import annotations

import threading

import grpc
import pytest
from structlog.testing import capture_logs

from tests.support.replay_service import local_server
from tidemill.errors import Unavailable
from tidemill.replay.client import ReplayClient
from tidemill.rpc.channel import BoundedChannel, open_channel


class _Stuck(BoundedChannel):
    """A channel whose close waits until it is let go."""

    def __init__(self, channel: grpc.Channel) -> None:
        super().__init__(channel, "")
        self.closes, self.let_go = 0, threading.Event()

    def close(self) -> None:
        """Wait."""
        self.closes += 1
        self.let_go.wait()
        super().close()


def test_close_that_hangs_is_left_to_a_thread_and_logged() -> None:
    """`close` returns although the channel's own does not, says so once, and is not repeated."""
    stuck = _Stuck(open_channel("127.0.0.1:1"))
    channel = BoundedChannel(stuck, "unix:///frozen.sock", close_s=0.05)
    try:
        with capture_logs() as logs:
            channel.close()
            channel.close()
    finally:
        stuck.let_go.set()
    assert stuck.closes == 1
    assert [entry["address"] for entry in logs] == ["unix:///frozen.sock"]


def test_closed_channel_takes_no_more_calls() -> None:
    """A call after `close` fails at once, as on gRPC's own channel."""
    with local_server() as server, ReplayClient(server.address) as client:
        client.list_tables()
        client.close()
        with pytest.raises((ValueError, Unavailable)):
            client.list_tables()


def test_open_channel_is_bounded() -> None:
    """What everybody opens is the kind that closes in time."""
    with open_channel("127.0.0.1:1") as channel:
        assert isinstance(channel, BoundedChannel)
