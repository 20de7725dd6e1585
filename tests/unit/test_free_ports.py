"""The ports that tests choose before something listens there."""

from __future__ import annotations

import socket
from collections import deque
from pathlib import Path

import pytest

from tests.support.free_ports import PORTS, free_port, ports_of_worker

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not _OUTGOING.exists(), reason="needs the range of outgoing connections, as on Linux")
def test_free_port_is_none_that_an_outgoing_connection_takes() -> None:
    """It is below their range as Linux sets it, so no connection can take it before the server listens."""
    lowest = int(_OUTGOING.read_text().split()[0])
    assert PORTS.stop <= max(lowest, 32768)  # unless this machine's range was widened
    assert all(free_port() in PORTS for _ in range(20))


def test_free_port_is_given_once_and_with_those_after_it() -> None:
    """A server that has not started yet keeps it, and a row of ports is free as a whole."""
    first = [free_port(in_a_row=3) for _ in range(20)]
    ports = {port + place for port in first for place in range(3)}
    assert len(ports) == 60
    assert free_port() not in ports


def test_port_that_is_taken_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ports one is taken: the other is chosen."""
    port = free_port(in_a_row=2)
    monkeypatch.setattr("tests.support.free_ports._given", deque[int]())
    monkeypatch.setattr("tests.support.free_ports.PORTS", range(port, port + 2))
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "1")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    with socket.create_server(("127.0.0.1", port)):
        assert free_port() == port + 1


def test_workers_choose_from_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two workers of a suite are given the same port, and together they have all."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "4")
    ports: list[int] = []
    for worker in range(4):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        ports.extend(ports_of_worker())
    assert ports == list(PORTS)
