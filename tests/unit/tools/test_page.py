"""`tidemill page`: the time and the end that it shows are those of the run."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.config.load import from_document
from tidemill.config.run import ClusterSettings, RunSettings
from tidemill.config.sections import RunConfig
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.services.launcher.view.processes import AskedServices
from tidemill.services.launcher.view.status import ClusterStatus
from tidemill.services.tools.page import _at_its_end, _RunClock


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


def test_end_of_a_run_outlasts_its_learner(tmp_path: Path) -> None:
    """A learner without an engine leaves after the end; a result of other limits is that of an earlier end."""
    config = from_document(RunConfig, {"run": {"name": "r", "root": str(tmp_path)}})
    gone = replace(_polled(2.0, 3.0), learner_answers=False)
    assert _at_its_end(gone, config) == gone
    config.run.folder.mkdir()
    file = config.run.folder / "result.json"
    for mark, state in (("other", LearnerState.TRAINING), (config.run.end_tag, LearnerState.ENDED)):
        file.write_text(
            json.dumps({"mark": mark, "end": "asked", "learner_steps": 8, "env_steps": 7, "params_version": 6})
        )
        shown = _at_its_end(gone, config).learner
        assert shown is not None
        assert (shown.state, shown.end) == (state, "asked" if mark == config.run.end_tag else "")
    assert _at_its_end(gone, config).waiting == "the run has ended"
    found = _at_its_end(replace(gone, learner=None), config).learner
    assert found == LearnerStatus(LearnerState.ENDED, learner_steps=8, env_steps=7, params_version=6, end="asked")
    answers = replace(gone, learner_answers=True)
    assert _at_its_end(answers, config) == answers


def test_service_whose_socket_is_elsewhere_is_shown_with_where_to_ask(tmp_path: Path) -> None:
    """Of a run on another machine, or with another /tmp; a service that may be reached just does not answer."""
    here, elsewhere = f"unix://{tmp_path}/a.sock", f"unix://{tmp_path}/missing/a.sock"
    with closing(AskedServices(ClusterSettings(replay=(here,), params=elsewhere, learner=elsewhere))) as asked:
        reasons = {row.name: row.reason for row in asked()}
    assert reasons["replay"] == f"no answer from {here}"
    assert reasons["paramserver"] == reasons["learner"]
    assert f"no {tmp_path}/missing here; ask where the run was started" in reasons["learner"]
