"""`tidemill page`: the time that it shows is that of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config.run import RunSettings
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.services.launcher.view.status import ClusterStatus
from tidemill.services.tools.page import _RunClock


def _polled(elapsed_s: float, uptime_s: float | None) -> ClusterStatus:
    """Return the status that a page of that age gets from a learner of that age."""
    learner = None if uptime_s is None else LearnerStatus(LearnerState.TRAINING, uptime_s=uptime_s)
    return ClusterStatus(elapsed_s, (), learner, earlier_s=300.0)


def test_time_of_a_run_outlasts_its_learner(tmp_path: Path) -> None:
    """Its process, which may start again without having answered in between, and its absence count as well."""
    clock = _RunClock(tmp_path)
    shown = [clock.of_the_run(_polled(page_s, up_s)) for page_s, up_s in ((2.0, 5_000.0), (60.0, 3.0), (70.0, None))]
    assert [status.elapsed_s for status in shown] == [5_000.0, 5_058.0, 5_068.0]


def test_time_of_a_run_leaves_out_that_of_a_page_before_it(tmp_path: Path) -> None:
    """A page may be open long before the learner starts, whose process may start again."""
    clock = _RunClock(tmp_path)
    ages = ((3_600.0, None), (3_602.0, 2.0), (3_610.0, 10.0), (3_620.0, 3.0))
    shown = [clock.of_the_run(_polled(page_s, up_s)) for page_s, up_s in ages]
    assert [status.elapsed_s for status in shown] == [0.0, 2.0, 10.0, 20.0]


@pytest.mark.parametrize("uptime_s", [3.0, None])
def test_time_of_a_run_is_that_of_its_folder_if_the_page_is_newer(tmp_path: Path, uptime_s: float | None) -> None:
    """What the evaluator has written counts toward `run.max_wall_s`, and once."""
    (tmp_path / "wall_clock.json").write_text('{"wall_s": 300.0, "before_s": 0.0, "session_start_s": 1.0}')
    status = _RunClock(tmp_path).of_the_run(_polled(2.0, uptime_s))
    assert status.elapsed_s == 300.0
    assert status.fraction(RunSettings(max_wall_s=600.0)) == 0.5
