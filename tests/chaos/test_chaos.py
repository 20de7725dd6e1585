"""A short set of the faults that `make chaos` causes at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.fault_report import FaultReport, check
from tests.chaos.params import kill_params
from tests.chaos.replay import freeze_replay, kill_replay


@pytest.mark.parametrize("ack", ["write", "fsync"])
def test_killed_replay_server_has_everything_acknowledged_once(tmp_path: Path, ack: str) -> None:
    """Killed while actors write and a learner samples: nothing is lost, doubled, altered or invented."""
    check(kill_replay(tmp_path, 3, seed=3, ack=ack), faults=3)


def test_frozen_replay_server_costs_a_pause(tmp_path: Path) -> None:
    """Stopped for seconds and woken, it has everything once."""
    check(freeze_replay(tmp_path, 1, seed=3), faults=1)


def test_killed_parameter_server_has_every_acknowledged_version(tmp_path: Path) -> None:
    """Killed while a learner publishes and actors fetch: versions only grow, and keep their bytes."""
    check(kill_params(tmp_path, 3, seed=3), faults=3)


def test_broken_promise_is_seen() -> None:
    """A report with anything lost, doubled, altered or invented is not clean."""
    for name in ("acknowledged_lost", "duplicates", "altered", "unknown"):
        assert not FaultReport("made up", **{name: 1}).is_clean  # type: ignore[arg-type]
    assert FaultReport("made up", faults=3).is_clean
