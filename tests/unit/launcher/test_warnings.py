"""Warnings of what is wrong with a running cluster: when they come, and that they say what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig, TableDescription
from tidemill.services.launcher.view.curves import env_failures
from tidemill.services.launcher.view.warnings import ClusterSample, WarningTracker
from tidemill.types import ColumnSpec

_LEARNER = LearnerStatus(LearnerState.TRAINING, learner_steps=1_000, params_version=10, checkpoint_steps=900)
_CONFIG = TableConfig("replay", (ColumnSpec("reward", "float32", ()),), SelectorConfig(SelectorKind.UNIFORM), 10, 1)
_TABLE = TableDescription(_CONFIG, 0, 0, 0, 0, 0, 0, 0, 0, 0, False, False, 0.0, 0.0, 0, 0.0)
_WELL = ClusterSample(_LEARNER, (_TABLE,), 100 * 2**30)


@pytest.fixture
def tracker() -> WarningTracker:
    """One that has seen nothing; the learner publishes every 100 steps."""
    return WarningTracker(Path("runs/lander"), publish_every=100)


def test_cluster_that_is_well_gets_no_warning(tracker: WarningTracker) -> None:
    """Nor does one whose learner has not started yet."""
    for now_s in (0.0, 60.0):
        assert tracker.warnings(_WELL, now_s) == ()
        assert tracker.warnings(replace(_WELL, learner=None, tables=()), now_s) == ()


@pytest.mark.parametrize(
    "sample, words",
    [
        (replace(_WELL, disk_free_bytes=3 * 2**20), "the disk of runs/lander is full (3 MiB free)"),
        (replace(_WELL, tables=(_TABLE, replace(_TABLE, log_full=True))), "is full (102,400 MiB free)"),
        (replace(_WELL, disk_free_bytes=700 * 2**20), "700 MiB left on the disk of runs/lander: make room"),
    ],
)
def test_disk_that_is_full_or_will_be_is_told_at_once(
    tracker: WarningTracker, sample: ClusterSample, words: str
) -> None:
    """By the room that is left here, or by a replay service that says that its own disk is full."""
    (line,) = tracker.warnings(sample, 0.0)
    assert words in line


def test_failed_checkpoint_is_told_with_what_a_resume_would_find(tracker: WarningTracker) -> None:
    """Why, which is the newest there is, and how to have one written at once."""
    failed = replace(_LEARNER, checkpoint_error="No space left on device")
    (line,) = tracker.warnings(replace(_WELL, learner=failed), 0.0)
    assert "that of step 900 is the newest: No space left on device" in line
    assert "tidemill ctl checkpoint" in line
    (line,) = tracker.warnings(replace(_WELL, learner=replace(failed, checkpoint_steps=0)), 0.0)
    assert "there is none" in line


def test_environments_that_fail_are_told_for_ten_minutes(tracker: WarningTracker) -> None:
    """How often and how, and where the reasons are; longer if more fail."""
    failed = replace(_WELL, env_failures={"actor-0": {"raised": 2}, "actor-1": {"hung": 1}})
    for now_s in (5.0, 600.0):
        (line,) = tracker.warnings(failed, now_s)
        assert "(1 hung, 2 raised): reasons are in runs/lander/logs/actor-*.log" in line
    assert tracker.warnings(failed, 606.0) == ()
    assert (
        len(tracker.warnings(replace(_WELL, env_failures={"actor-0": {"raised": 3}, "actor-1": {"hung": 1}}), 607.0))
        == 1
    )


def test_run_whose_simulators_do_not_play_says_where_they_connect() -> None:
    """After half a minute in which the learner waits; not if it has data, nor in a run with actors."""
    tracker = WarningTracker(Path("runs/lander"), publish_every=100, simulators_at="127.0.0.1:7406")
    waits = replace(_WELL, learner=replace(_LEARNER, state=LearnerState.WAITING, env_steps=0))
    assert tracker.warnings(waits, 10.0) == ()
    assert tracker.warnings(waits, 39.0) == ()
    (line,) = tracker.warnings(waits, 40.0)
    assert "no simulator has played for 30 s" in line
    assert "simulators connect to 127.0.0.1:7406" in line
    assert tracker.warnings(replace(waits, learner=replace(_LEARNER, env_steps=5)), 41.0) == ()
    has_actors = WarningTracker(Path("runs/lander"), publish_every=100)
    for now_s in (0.0, 60.0):
        assert has_actors.warnings(waits, now_s) == ()


def test_services_that_wait_for_each_other_are_the_normal_state(tracker: WarningTracker) -> None:
    """Whichever side sets the pace, the rate limiter holds back the other one: nothing is wrong."""
    for now_s in range(90):
        tables = (replace(_TABLE, insert_blocked_s=0.99 * now_s),)
        learner = replace(_LEARNER, wait_fraction=0.95)
        assert tracker.warnings(replace(_WELL, tables=tables), float(now_s)) == ()
        assert tracker.warnings(replace(_WELL, learner=learner), float(now_s)) == ()


def test_parameters_that_are_not_published_are_stale(tracker: WarningTracker) -> None:
    """Half a minute and two versions late; a learner that only takes its time is not."""

    def after(steps: int, now_s: float, version: int = 10) -> tuple[str, ...]:
        learner = replace(_LEARNER, learner_steps=steps, params_version=version)
        return tracker.warnings(replace(_WELL, learner=learner), now_s)

    assert after(1_000, 0.0) == ()
    assert after(1_199, 60.0) == ()
    assert after(1_200, 29.0) == ()
    (line,) = after(1_250, 31.0)
    assert "no parameters were published for 31 s and 250 updates: actors act by version 10" in line
    assert "paramserver.log" in line
    assert after(1_300, 32.0, version=11) == ()


def test_failures_of_earlier_sessions_are_known() -> None:
    """After `resume` their curves are still in the folder; an actor whose count falls began again, and failed again."""
    before = {"actor-0": {"raised": 5}, "actor-1": {"raised": 2}}
    tracker = WarningTracker(Path("run"), 100, failed_before=before)
    counts = (before, {"actor-1": {"raised": 2}}, {"actor-0": {"raised": 1}, "actor-1": {"raised": 2}})
    lines = [tracker.warnings(replace(_WELL, env_failures=each), 10.0 * i) for i, each in enumerate(counts)]
    assert [len(each) for each in lines] == [0, 0, 1]
    assert "3 raised" in lines[-1][0]


def test_failures_of_an_actor_that_was_started_again_are_new_ones(tmp_path: Path) -> None:
    """Also as many as those of the process before, of which its first points say nothing."""
    file = tmp_path / "curves" / "actor-0.jsonl"
    file.parent.mkdir()
    failed = {"actor/env_steps_per_s": 1.0, "actor/env_failures/raised": 1.0}
    counts = []
    for point in (failed, {"actor/env_steps_per_s": 1.0}, failed):
        file.write_text(json.dumps({"time": 1.0} | point) + "\n")
        counts.append(env_failures(tmp_path))
    tracker = WarningTracker(tmp_path, 100, failed_before=counts[0])
    lines = [tracker.warnings(replace(_WELL, env_failures=each), 10.0 * i) for i, each in enumerate(counts)]
    assert [len(each) for each in lines] == [0, 0, 1]


def test_failures_of_an_actor_that_was_silent_for_a_while_are_no_new_ones() -> None:
    """As after a pause, when one actor continues before the other; a count that has changed is warned of."""
    tracker, both = WarningTracker(Path("run"), 100), {"actor-0": {"raised": 2}, "actor-1": {"hung": 1}}
    counts = (both, {"actor-0": {"raised": 2}}, both, both | {"actor-1": {"hung": 2}})
    lines = [tracker.warnings(replace(_WELL, env_failures=each), 3600.0 * i) for i, each in enumerate(counts)]
    assert [len(each) for each in lines] == [1, 0, 0, 1]
