"""A short set of the faults that `make chaos` causes at length."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks.rows import FOLDER_VARIABLE
from tests.chaos.__main__ import SERIES, main
from tests.chaos.clock import jump_clocks, libfaketime
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


def test_run_goes_on_when_the_time_of_day_jumps(tmp_path: Path) -> None:
    """Of all its processes, by an hour forward and back: every step is stored once, and versions only grow."""
    if libfaketime() is None:
        pytest.skip("the package `faketime` is not installed")
    (report,) = jump_clocks(tmp_path, 1, seed=3, whose=("all",))
    check(report, faults=2)


def test_series_of_its_own_leaves_the_rows_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --only; all of them together begin from scratch."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    for name in list(SERIES):
        monkeypatch.delitem(SERIES, name)
    for name in ("first", "second"):
        monkeypatch.setitem(SERIES, name, partial(_series, name))

    def rows() -> list[tuple[str, int]]:
        found = json.loads((tmp_path / "faults.json").read_text())["rows"]
        return [(row["name"], row["kills"]) for row in found]

    assert main(["--only", "first", "--kills", "1"]) == 0
    assert main(["--only", "second", "--kills", "2"]) == 0
    assert rows() == [("first", 1), ("second", 2)]
    assert main(["--only", "first", "--kills", "3"]) == 0
    assert rows() == [("second", 2), ("first", 3)]
    assert main(["--kills", "4"]) == 0
    assert rows() == [("first", 4), ("second", 4)]


def _series(name: str, _folder: Path, kills: int, _seed: int) -> list[FaultReport]:
    return [FaultReport(name, faults=kills)]


def test_broken_promise_is_seen() -> None:
    """A report with anything lost, doubled, altered or invented is not clean."""
    for name in ("acknowledged_lost", "duplicates", "altered", "unknown"):
        assert not FaultReport("made up", **{name: 1}).is_clean  # type: ignore[arg-type]
    assert FaultReport("made up", faults=3).is_clean
