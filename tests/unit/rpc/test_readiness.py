"""Waiting at the start for services that may not be there yet."""

from __future__ import annotations

import threading

import pytest

from tests.support.naming import naming
from tests.support.waiting import WAIT_S
from tidemill.errors import Unavailable
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.readiness import wait_for_any, wait_for_service
from tidemill.rpc.settings import ServerSettings


def test_listening_service_is_found() -> None:
    """It need not be healthy, only there."""
    with BackgroundServer("test", ServerSettings(grace_s=0.1)) as server:
        assert wait_for_service("cluster.replay", server.start(), 10.0, threading.Event())


def test_absent_service_is_named_after_the_timeout() -> None:
    """One line with setting, address and time."""
    with pytest.raises(Unavailable, match=naming("cluster.params 127.0.0.1:1 0.2")):
        wait_for_service("cluster.params", "127.0.0.1:1", 0.2, threading.Event())


def test_one_of_several_services_is_enough() -> None:
    """The others may come later; without any, all addresses are named."""
    with BackgroundServer("test", ServerSettings(grace_s=0.1)) as server:
        assert wait_for_any("cluster.inference", ("127.0.0.1:1", server.start()), WAIT_S, threading.Event())
    with pytest.raises(Unavailable, match=naming("cluster.inference 0.2")) as failed:
        wait_for_any("cluster.inference", ("127.0.0.1:1", "127.0.0.1:2"), 0.2, threading.Event())
    assert "127.0.0.1:1, 127.0.0.1:2" in str(failed.value)


def test_stop_ends_the_wait() -> None:
    """SIGTERM during the start is not ignored for a minute."""
    stop = threading.Event()
    stop.set()
    assert not wait_for_service("cluster.replay", "127.0.0.1:1", 60.0, stop)
