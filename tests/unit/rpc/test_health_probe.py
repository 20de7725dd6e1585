"""The probe a container's healthcheck runs."""

from __future__ import annotations

import pytest

from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.health_probe import main
from tidemill.rpc.settings import ServerSettings


def test_probe_follows_the_health_of_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    """It fails while the service prepares, with the state in words, and succeeds once it serves."""
    with BackgroundServer("test", ServerSettings(grace_s=0.1)) as server:
        address = server.start()
        assert main([address]) == 1
        assert capsys.readouterr().err == f"{address}: NOT_SERVING\n"
        server.set_serving(True)
        assert main([address]) == 0


def test_probe_of_a_service_that_is_not_there_fails_within_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody listens: the probe gives up at its bound and says why."""
    assert main(["127.0.0.1:1", "--timeout-s", "0.2"]) == 1
    assert capsys.readouterr().err.startswith("127.0.0.1:1: ")
