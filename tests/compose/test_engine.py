"""Steps of the tests before they start an engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.compose.engine import stale_rules
from tests.compose.stack import Stack


def test_rules_of_networks_that_are_gone_are_found(tmp_path: Path) -> None:
    """Not those of a network that is there, of Docker's own bridge, or of anything else."""
    (tmp_path / "br-0a1b").mkdir()
    gone = "-A POSTROUTING -s 172.18.0.0/16 ! -o br-2e0a -j MASQUERADE"
    rules = (
        "-P POSTROUTING ACCEPT",
        "-A POSTROUTING -s 172.19.0.0/16 ! -o br-0a1b -j MASQUERADE",
        gone,
        "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
        "-A POSTROUTING -s 172.20.0.2/32 -d 172.20.0.2/32 -p tcp -m tcp --dport 8100 -j MASQUERADE",
    )
    assert stale_rules("\n".join(rules), tmp_path) == [gone]


def test_processes_that_end_while_a_service_is_frozen_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of health checks do; the others continue afterwards."""
    signals = []

    def kill(pid: int, number: int) -> None:
        if pid == 7:
            raise ProcessLookupError
        signals.append((pid, number))

    monkeypatch.setattr(os, "kill", kill)
    engine = Mock(docker=Mock(return_value="PID\n7\n8\n"))
    with Stack.frozen(Mock(engine=engine, containers=Mock(return_value=[{"Id": "a"}])), "actor"):
        assert signals == [(8, signal.SIGSTOP)]
    assert signals[1:] == [(8, signal.SIGCONT)]


def test_a_number_that_was_reached_is_the_one_returned() -> None:
    """A scrape that was missed, before or after, has none."""
    stack = Mock(numbers=Mock(side_effect=[[], [5.0], [], [6.0], []]), describe=str)
    assert Stack.until_above(stack, "x", 5.0) == 6.0


def test_crash_waits_for_a_process_that_it_can_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine says 0 between two starts, which is every process of the group that this one is in."""
    kill = Mock()
    monkeypatch.setattr(os, "kill", kill)
    states = [{"Pid": pid, "StartedAt": start, "Status": "running"} for pid, start in ((0, 1), (7, 2), (7, 2), (8, 3))]
    containers = Mock(return_value=[{"Name": "/actor-1", "State": states[0]}])
    stack = Mock(containers=containers, _inspect=Mock(side_effect=[{"State": state} for state in states]))
    Stack.crash(stack, "actor")
    kill.assert_called_once_with(7, signal.SIGKILL)
