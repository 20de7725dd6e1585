"""Closing a channel beside a peer that does nothing any more."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest
from structlog.testing import capture_logs

from tests.support.naming import naming
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


@pytest.mark.parametrize("ends", [True, False])
def test_channel_is_closed_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """As in a function of `atexit` in Python 3.12, or where there are too many, which is said once."""
    channel = BoundedChannel(stuck := _Stuck(open_channel("127.0.0.1:1")), "127.0.0.1:1")
    with monkeypatch.context() as ending, capture_logs() as logs:
        ending.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        ending.setattr(threading, "main_thread", Mock(return_value=Mock(is_alive=Mock(return_value=not ends))))
        channel.close()
        channel.close()
    with pytest.raises(ValueError, match=naming("127.0.0.1:1")):
        channel.unary_unary("/any")
    assert stuck.closes == 0
    assert [entry["address"] for entry in logs] == ([] if ends else ["127.0.0.1:1"])


def test_closed_channel_takes_no_more_calls() -> None:
    """A call after `close` fails at once, as on gRPC's own channel."""
    with local_server() as server, ReplayClient(server.address) as client:
        client.list_tables()
        client.close()
        with pytest.raises((ValueError, Unavailable)):
            client.list_tables()


_CALLS_A_CLOSED_CHANNEL = """
from tidemill.replay.client import ReplayClient

client = ReplayClient("127.0.0.1:1")
client.close()
try:
    client.list_tables()
except ValueError as error:
    print(error)
"""

_CLOSES_BESIDE_CALLS = """
import threading
from tidemill.errors import TidemillError
from tidemill.replay.client import ReplayClient

ends = []

def ask(client, began):
    began.wait()
    try:
        client.list_tables()
    except (ValueError, TidemillError) as error:
        ends.append(error)

for _ in range(100):
    client, began = ReplayClient("127.0.0.1:1"), threading.Barrier(4)
    threads = [threading.Thread(target=ask, args=(client, began)) for _ in range(3)]
    for thread in threads:
        thread.start()
    began.wait()
    client.close()
    for thread in threads:
        thread.join(10.0)
print(len(ends))
"""


@pytest.mark.parametrize("with_token", [False, True])
@pytest.mark.parametrize(
    "code, said", [(_CALLS_A_CLOSED_CHANNEL, "closed channel"), (_CLOSES_BESIDE_CALLS, "300")], ids=["after", "beside"]
)
def test_first_call_of_a_closed_channel_is_an_error(code: str, said: str, with_token: bool, tmp_path: Path) -> None:
    """With a token, which an interceptor adds, gRPC asks the channel at each call: a closed one ended the process."""
    (token := tmp_path / "token").write_text("x" * 32)
    token.chmod(0o600)
    environment = os.environ | ({"TIDEMILL_TOKEN_FILE": str(token)} if with_token else {})
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, said in ended.stdout) == (0, True), ended


def test_open_channel_is_bounded() -> None:
    """What everybody opens is the kind that closes in time."""
    with open_channel("127.0.0.1:1") as channel:
        assert isinstance(channel, BoundedChannel)
