"""Training time adds up over sessions and counts no session twice."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.clock import Clock
from tidemill.config.run import RunSettings
from tidemill.services.evaluator.run_logs import SESSION_VARIABLE, RunLogs, WallClock, session_start_s


def test_clock_counts_from_the_start_of_the_session(tmp_path: Path) -> None:
    """An evaluator that starts 4 s after the other processes counts those 4 s."""
    assert WallClock(tmp_path / "c.json", 100.0, Clock(104.0)).wall_s() == 4.0


def test_clock_goes_on_within_a_session_when_the_evaluator_restarts(tmp_path: Path) -> None:
    """The same session start means the same session: its time is not added to itself."""
    time = Clock(130.0)
    WallClock(tmp_path / "c.json", 100.0, time).save()
    time.now_s = 150.0
    assert WallClock(tmp_path / "c.json", 100.0, time).wall_s() == 50.0


def test_clock_adds_the_sessions_before_a_resume(tmp_path: Path) -> None:
    """30 s of a first session and 5 s of a second one are 35 s, also after a restart within the second."""
    WallClock(tmp_path / "c.json", 100.0, Clock(130.0)).save()
    second = WallClock(tmp_path / "c.json", 7.0, Clock(12.0))  # the machine was restarted in between
    assert second.wall_s() == 35.0
    second.save()
    assert WallClock(tmp_path / "c.json", 7.0, Clock(20.0)).wall_s() == 43.0


def test_clock_of_a_killed_session_without_a_launcher_lost_ten_seconds_at_most(tmp_path: Path) -> None:
    """Whoever waits or plays saves it now and then, so that a limit of time comes although no evaluation ends."""
    time = Clock(100.0)
    clock = WallClock(tmp_path / "c.json", 100.0, time)
    for time.now_s in (104.0, 109.0, 125.0, 134.0):
        clock.save_if_due()
    assert WallClock(tmp_path / "c.json", 7.0, Clock(7.0)).wall_s() == 25.0
    clock.save_if_due(within_s=0.0)
    assert WallClock(tmp_path / "c.json", 7.0, Clock(7.0)).wall_s() == 34.0


def test_clock_that_cannot_be_saved_now_is_saved_later(tmp_path: Path) -> None:
    """A full disk ends no evaluation, and nobody waits for room on it."""
    time = Clock(120.0)
    clock = WallClock(tmp_path / "run" / "c.json", 100.0, time)
    clock.save_if_due()
    (tmp_path / "run").mkdir()
    time.now_s = 130.0
    clock.save_if_due()
    assert WallClock(tmp_path / "run" / "c.json", 7.0, Clock(7.0)).wall_s() == 30.0


def test_session_starts_when_the_launcher_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a launcher it starts with the process."""
    monkeypatch.setenv(SESSION_VARIABLE, "12.25")
    assert session_start_s(Clock(99.0)) == 12.25
    monkeypatch.delenv(SESSION_VARIABLE)
    assert session_start_s(Clock(99.0)) == 99.0


def test_clock_that_cannot_be_saved_at_the_end_fails_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result is written by then; a disk that is full now loses seconds of training time."""
    logs = RunLogs(RunSettings(name="r", root=str(tmp_path)), Clock(0.0))
    monkeypatch.setattr(logs.clock, "save", Mock(side_effect=OSError(errno.ENOSPC, "no space")))
    logs.close()


def test_longest_evaluation_is_kept_for_the_next_session(tmp_path: Path) -> None:
    """The last evaluation of a resumed run may take as long; a file of an older version has none."""
    clock = WallClock(tmp_path / "c.json", 100.0, Clock(130.0))
    assert clock.longest_s == 0.0
    clock.longest_s = 300.0
    clock.save()
    assert WallClock(tmp_path / "c.json", 7.0, Clock(12.0)).longest_s == 300.0
