"""The evaluator's loop over scripted scores: what it evaluates, when it confirms, and how the run ends."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from prometheus_client import REGISTRY

from tests.support.clock import Clock
from tests.support.waiting import wait_until
from tidemill.atomic_files import append_whole
from tidemill.config.run import RunSettings
from tidemill.config.sections import EvaluatorConfig, RunConfig
from tidemill.config.services import EvaluatorSettings
from tidemill.params.run_end import FILMING, set_result_aside
from tidemill.params.version import Params, ParamsMetadata, Precision, Version
from tidemill.services.evaluator.curve_drawing import CurveDrawing
from tidemill.services.evaluator.episode_runner import EpisodeRunner
from tidemill.services.evaluator.evaluator import Evaluator, EvaluatorEvents
from tidemill.services.evaluator.params_source import ParamsSource
from tidemill.services.evaluator.protocol import EpisodesFailed, Evaluation
from tidemill.services.evaluator.report import write_report
from tidemill.services.evaluator.room import when_there_is_room
from tidemill.services.evaluator.run_logs import RunLogs, WallClock
from tidemill.services.evaluator.verdict import RunVerdict
from tidemill.services.launcher.run.continuation import check_limits, progress

_CREATED = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def _params(number: int) -> Params:
    metadata = ParamsMetadata("sac", "Line-v0", learner_steps=10 * number, env_steps=100 * number)
    return Params(Version(number, number - 1, 1, _CREATED, metadata, ()), Precision.FULL, b"")


@dataclass
class Source:
    """Offers versions one after another; the last one stays the newest."""

    numbers: list[int]
    stop: threading.Event
    tags: dict[str, int] = field(default_factory=dict)
    offered: int = 0
    is_away: bool = False
    """The server answers only those who try again for a minute."""
    deleted: set[int] = field(default_factory=set)
    """Versions that the server no longer has."""

    def newer_than(self, number: int) -> Params | None:
        """Return the next version; ask to stop when there are no more."""
        for candidate in self.numbers:
            if candidate > number:
                self.offered = candidate
                return _params(candidate)
        self.stop.set()
        return None

    def first_after(self, env_steps: int, every: int) -> Params | None:
        """Return the first version made after so many decisions; every version is kept."""
        del every
        return next((_params(number) for number in self.numbers if 100 * number >= env_steps), None)

    def newest(self, _wait_s: float = 0.0) -> Params | None:
        """Return the version offered last."""
        return _params(self.offered) if self.offered else None

    def best(self) -> Params | None:
        """There is nothing to film."""
        return None

    def tag(self, tag: str, number: int, wait_s: float = 0.0) -> bool | None:
        """Remember."""
        if self.is_away and wait_s < 60.0:
            return None
        if number in self.deleted:
            return False
        self.tags[tag] = number
        return True


@dataclass
class ScriptedRunner:
    """Returns the mean that the script has for a version: first of its evaluation, then of its confirmation."""

    means: dict[int, list[float]]
    seeds: list[tuple[int, int]] = field(default_factory=list)
    """First seed and number of episodes of every test."""

    def run(self, params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        """Play nothing."""
        if is_stopped():
            return None
        self.seeds.append((seeds[0], len(seeds)))
        mean = self.means[params.number].pop(0)
        return Evaluation(np.full(len(seeds), mean), np.full(len(seeds), 7), tuple(seeds))


@dataclass
class Scene:
    """An evaluator with its surroundings."""

    evaluator: Evaluator
    source: Source
    runner: ScriptedRunner
    logs: RunLogs
    config: EvaluatorConfig
    finish: threading.Event

    def report(self, verdict: RunVerdict) -> dict[str, Any]:
        """Write the report of a verdict and return result.json."""
        source, runner = cast(ParamsSource, self.source), cast(EpisodeRunner, self.runner)
        write_report(verdict, self.config, source, runner, self.logs, CurveDrawing(self.config))
        self.logs.close()
        result: dict[str, Any] = json.loads((self.config.run.folder / "result.json").read_text())
        return result


def _scene(folder: Path, means: dict[int, list[float]], evaluator: EvaluatorSettings, **run: float) -> Scene:
    config = EvaluatorConfig(run=RunSettings(root=str(folder), name="scene", **cast(Any, run)), evaluator=evaluator)
    stop, finish = threading.Event(), threading.Event()
    source, runner = Source(sorted(means), stop), ScriptedRunner(means)
    ticks = iter(range(1_000_000))
    logs = RunLogs(config.run, lambda: float(next(ticks)))
    made = Evaluator(
        config,
        cast(ParamsSource, source),
        cast(EpisodeRunner, runner),
        logs,
        stop=stop,
        finish=finish,
        now=lambda: float(next(ticks)),
    )
    return Scene(made, source, runner, logs, config, finish)


_SETTINGS = EvaluatorSettings(episodes=25, confirm_episodes=100, min_interval_s=0.0, seed=10_000, video=False)


def test_evaluator_ends_the_run_when_fresh_episodes_confirm_the_target(tmp_path: Path) -> None:
    """Version 2 reaches 200 and its 100 fresh episodes do too: solved, and the result says so."""
    scene = _scene(tmp_path, {1: [50.0], 2: [210.0, 205.0], 3: [999.0]}, _SETTINGS, target_return=200.0)
    verdict = scene.evaluator.run()
    assert verdict == RunVerdict(True, "a mean return of 200 was reached", 2)
    assert scene.runner.seeds == [(10_000, 25), (10_000, 25), (1_010_000, 100)]
    result = scene.report(verdict)
    assert (result["solved"], result["mean_return"], result["confirmed_mean"]) == (True, 210.0, 205.0)
    assert (result["params_version"], result["env_steps"], result["learner_steps"]) == (2, 200, 20)
    assert (result["episodes"], result["confirm_episodes"], result["failed_confirmations"]) == (25, 100, 0)
    assert result["learning_curve"] == "plots/learning_curve.png"
    assert (scene.source.tags["best"], scene.source.tags["verdict"]) == (2, 2)


def test_evaluator_goes_on_after_a_confirmation_that_failed(tmp_path: Path) -> None:
    """A lucky crossing is recorded and training continues; the next confirmation plays other seeds."""
    means = {1: [220.0, 150.0], 2: [190.0], 3: [201.0, 202.0]}
    scene = _scene(tmp_path, means, _SETTINGS, target_return=200.0)
    verdict = scene.evaluator.run()
    assert verdict is not None
    assert (verdict.solved, verdict.version) == (True, 3)
    assert [seeds for seeds in scene.runner.seeds if seeds[1] == 100] == [(1_010_000, 100), (1_010_100, 100)]
    assert [row.mean for row in scene.logs.confirmations.rows] == [150.0, 202.0]
    result = scene.report(verdict)
    assert (result["failed_confirmations"], result["evaluations"]) == (1, 3)
    # The crossing that was luck has the larger mean; the best version is the one that was confirmed.
    assert (result["best_version"], scene.source.tags["best"]) == (3, 3)


@pytest.mark.parametrize("target", [{}, {"target_return": 300.0}])
def test_fresh_episodes_speak_for_a_version_after_a_resume_with_another_target(
    tmp_path: Path, target: dict[str, float]
) -> None:
    """Version 1 crossed by luck: it is worth 150, and the version that the tag was taken to may be surpassed."""
    scene = _scene(tmp_path, {1: [220.0, 150.0], 2: [190.0], 3: [201.0, 202.0]}, _SETTINGS, target_return=200.0)
    scene.evaluator.run()
    scene.logs.close()
    again = _scene(tmp_path, {4: [190.0], 5: [215.0]}, _SETTINGS, **target)
    tags = []
    again.evaluator._events = EvaluatorEvents(on_evaluation=lambda _: tags.append(again.source.tags.get("best")))
    again.evaluator.run()
    assert (tags, again.source.tags["best"]) == ([3, 3], 5)


def test_confirmation_plays_fresh_seeds_after_a_resume_with_fewer_episodes(tmp_path: Path) -> None:
    """Three confirmations of 100 episodes were played; the next one, of 50, begins behind all of them."""
    scene = _scene(tmp_path, {n: [220.0, 150.0] for n in (1, 2, 3)}, _SETTINGS, target_return=200.0)
    scene.evaluator.run()
    scene.logs.close()
    settings = dataclasses.replace(_SETTINGS, confirm_episodes=50)
    again = _scene(tmp_path, {4: [220.0, 210.0]}, settings, target_return=200.0)
    again.evaluator.run()
    assert again.runner.seeds == [(10_000, 25), (1_010_300, 50)]


def test_confirmation_plays_fresh_seeds_after_one_that_was_broken_off(tmp_path: Path) -> None:
    """The first confirmation took too long and is in no file."""
    scene = _scene(tmp_path, {1: [220.0], 2: [220.0, 210.0]}, _SETTINGS, target_return=200.0)
    play, broken_off = scene.runner.run, list[int]()

    def slow(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        if params.number == 1 and len(seeds) == 100:
            broken_off.append(seeds[0])
            return None
        return play(params, seeds, is_stopped)

    scene.runner.run = slow  # type: ignore[method-assign]
    verdict = scene.evaluator.run()
    assert verdict is not None
    assert verdict.solved
    assert (broken_off, scene.runner.seeds[-1]) == ([1_010_000], (1_010_100, 100))


@pytest.mark.parametrize(
    "confirmed, said", [([150.0], "fresh episodes did not confirm it"), ([], "the confirmation was not completed")]
)
def test_end_tells_a_confirmation_that_failed_from_one_that_was_not_completed(
    confirmed: list[float], said: str, tmp_path: Path
) -> None:
    """Without a mean of fresh episodes nothing is known of the policy."""
    scene = _scene(tmp_path, {2: [220.0, *confirmed]}, _SETTINGS, target_return=200.0, max_env_steps=200)
    play = scene.runner.run
    scene.runner.run = lambda params, *other: play(params, *other) if scene.runner.means[2] else None  # type: ignore[method-assign]
    reason = f"run.max_env_steps (200) reached; the mean reached the target, but {said}"
    assert scene.evaluator.run() == RunVerdict(False, reason, 2)


def test_evaluator_takes_the_result_at_its_word_without_confirmation(tmp_path: Path) -> None:
    """confirm_episodes 0 skips it."""
    settings = EvaluatorSettings(confirm_episodes=0, min_interval_s=0.0, video=False)
    scene = _scene(tmp_path, {1: [200.0]}, settings, target_return=200.0)
    verdict = scene.evaluator.run()
    assert verdict is not None
    assert verdict.solved
    assert scene.report(verdict)["confirmed_mean"] is None


def test_evaluator_measures_the_newest_version_when_a_limit_is_reached(tmp_path: Path) -> None:
    """The version at run.max_learner_steps is evaluated, and the run ends unsolved with that result."""
    scene = _scene(tmp_path, {1: [50.0], 4: [120.0]}, _SETTINGS, target_return=200.0, max_learner_steps=40)
    verdict = scene.evaluator.run()
    assert verdict == RunVerdict(False, "run.max_learner_steps (40) reached", 4)
    result = scene.report(verdict)
    assert (result["solved"], result["mean_return"], result["target_return"]) == (False, 120.0, 200.0)
    assert result["best_mean"] == 120.0


def test_evaluator_breaks_off_an_evaluation_when_the_time_of_the_run_is_over(tmp_path: Path) -> None:
    """Version 1 plays until it is stopped, which run.max_wall_s does; then the newest version is measured."""
    scene = _scene(tmp_path, {1: [50.0], 2: [60.0]}, _SETTINGS, max_wall_s=100.0)
    play, asked = scene.runner.run, list[int]()

    def endless(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        if asked:
            return play(params, seeds, is_stopped)
        asked.append(next(ask for ask in range(1000) if is_stopped()))
        scene.source.offered = 2
        return None

    scene.runner.run = endless  # type: ignore[method-assign]
    verdict = scene.evaluator.run()
    assert asked[0] > 0, "the time was not over when it began"
    assert verdict == RunVerdict(False, "run.max_wall_s (100) reached", 2)
    assert scene.report(verdict)["evaluations"] == 1


def test_evaluator_can_solve_the_run_in_its_last_evaluation(tmp_path: Path) -> None:
    """The limit is reached by the version that also reaches the target."""
    scene = _scene(tmp_path, {4: [250.0, 240.0]}, _SETTINGS, target_return=200.0, max_env_steps=400)
    verdict = scene.evaluator.run()
    assert verdict is not None
    assert (verdict.solved, verdict.version) == (True, 4)


def test_evaluator_does_not_repeat_the_version_it_measured_last_at_the_end(tmp_path: Path) -> None:
    """`finish` with nothing new since the last evaluation ends with that evaluation."""
    scene = _scene(tmp_path, {1: [50.0]}, _SETTINGS)
    scene.source.newer_than = lambda number, ask=scene.source.newer_than: (  # type: ignore[method-assign, misc]
        scene.finish.set() if number == 1 else ask(number)
    )
    verdict = scene.evaluator.run()
    assert verdict == RunVerdict(False, "training has ended", 1)
    assert scene.runner.seeds == [(10_000, 25)]


def test_evaluator_ends_with_a_result_when_nothing_was_ever_published(tmp_path: Path) -> None:
    """A run that is over before its first version still says how it ended."""
    scene = _scene(tmp_path, {}, _SETTINGS)
    scene.finish.set()
    verdict = scene.evaluator.run()
    assert verdict is not None
    result = scene.report(verdict)
    assert (result["solved"], result["mean_return"], result["episodes"]) == (False, None, 0)
    assert result["learning_curve"] is None


def test_evaluator_has_no_ending_when_it_is_stopped(tmp_path: Path) -> None:
    """SIGTERM leaves the run open: no result is written, and it can be resumed."""
    scene = _scene(tmp_path, {1: [50.0]}, _SETTINGS)
    assert scene.evaluator.run() is None
    assert not (tmp_path / "scene" / "result.json").exists()


def test_evaluator_does_not_repeat_a_version_after_a_restart(tmp_path: Path) -> None:
    """A second evaluator on the same folder starts behind the newest version of scores.csv."""
    scene = _scene(tmp_path, {1: [50.0], 2: [60.0]}, _SETTINGS)
    scene.evaluator.run()
    scene.logs.close()
    again = _scene(tmp_path, {1: [0.0], 2: [0.0], 3: [70.0]}, _SETTINGS)
    again.evaluator.run()
    assert [(row.params_version, row.mean) for row in again.logs.scores.rows] == [
        (1, 50.0),
        (2, 60.0),
        (3, 70.0),
    ]
    again.logs.close()


def test_last_evaluation_of_a_restarted_evaluator_may_take_as_long_as_those_before(tmp_path: Path) -> None:
    """An evaluation took 500 s: after a restart the last one has at least twice that instead of 120 s."""
    scene = _scene(tmp_path, {1: [50.0]}, _SETTINGS)
    play, now = scene.runner.run, scene.evaluator._now

    def slow(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        for _ in range(500):
            now()
        return play(params, seeds, is_stopped)

    scene.runner.run = slow  # type: ignore[method-assign]
    scene.evaluator.run()  # is not closed, as if it was killed
    again = _scene(tmp_path, {1: [50.0]}, _SETTINGS)
    again.finish.set()
    assert again.evaluator.step_limit_s() > 1000.0


def test_metrics_show_the_scores_of_the_run_after_a_restart(tmp_path: Path) -> None:
    """Until the first evaluation ends, which may take an hour."""
    scene = _scene(tmp_path, {7: [50.0], 8: [40.0]}, _SETTINGS)
    scene.evaluator.run()
    scene.logs.close()
    _scene(tmp_path / "another", {1: [1.0]}, _SETTINGS).evaluator.run()
    _scene(tmp_path, {}, _SETTINGS)
    names = ("return_mean", "best_return_mean", "params_version")
    assert [REGISTRY.get_sample_value(f"tidemill_evaluator_{name}") for name in names] == [40.0, 50.0, 8.0]


def test_evaluator_leaves_out_versions_before_start_env_steps(tmp_path: Path) -> None:
    """Early parameters are not worth an evaluation."""
    settings = EvaluatorSettings(start_env_steps=250, min_interval_s=0.0, video=False)
    scene = _scene(tmp_path, {1: [50.0], 2: [50.0], 3: [50.0]}, settings)
    numbers = iter([1, 2, 3])
    ask = scene.source.newer_than
    scene.source.newer_than = lambda number: (  # type: ignore[method-assign]
        _params(following) if (following := next(numbers, 0)) else ask(9)
    )
    scene.evaluator.run()
    assert [row.params_version for row in scene.logs.scores.rows] == [3]


def test_evaluations_are_made_at_the_same_decisions_in_every_run(tmp_path: Path) -> None:
    """The first version after each multiple, however fast versions come; a multiple that was missed is left out."""
    settings = EvaluatorSettings(every_env_steps=250, min_interval_s=0.0, confirm_episodes=0, video=False)
    scene = _scene(tmp_path, {number: [1.0] for number in range(1, 20)}, settings)
    newest = iter([1, 2, 4, 4, 6, 14, 15, 18])
    ask = scene.source.newer_than
    scene.source.newer_than = lambda number: (  # type: ignore[method-assign]
        _params(following) if (following := next(newest, 0)) else ask(99)
    )
    scene.evaluator.run()
    assert [row.env_steps for row in scene.logs.scores.rows] == [300, 500, 800, 1000, 1300]


def _every_250(folder: Path, newest: Sequence[int], start: int = 0) -> Scene:
    settings = EvaluatorSettings(every_env_steps=250, start_env_steps=start, min_interval_s=0.0, video=False)
    scene = _scene(folder, {number: [1.0] for number in range(1, 20)}, settings)
    numbers, ask = iter(newest), scene.source.newer_than
    scene.source.newer_than = lambda number: (  # type: ignore[method-assign]
        _params(following) if (following := next(numbers, 0)) else ask(99)
    )
    return scene


def test_version_without_a_score_is_not_tried_twice(tmp_path: Path) -> None:
    """The next evaluation is due at the next multiple, as if the version had a score."""
    scene = _every_250(tmp_path, [3, 4, 4, 5])
    play, played = scene.runner.run, list[int]()

    def failing_once(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        played.append(params.number)
        if params.number == 3:
            raise EpisodesFailed("no episode could be played to its end")
        return play(params, seeds, is_stopped)

    scene.runner.run = failing_once  # type: ignore[method-assign]
    scene.evaluator.run()
    assert played == [3, 5]


def test_first_evaluation_is_at_a_multiple_behind_start_env_steps(tmp_path: Path) -> None:
    """Versions 4 and 5 are made before the first multiple of 250 decisions that is at least 600."""
    scene = _every_250(tmp_path, [4, 5, 7, 8, 9], start=600)
    scene.evaluator.run()
    assert [row.env_steps for row in scene.logs.scores.rows] == [800]


@pytest.mark.parametrize("newest, evaluated", [([9, 9, 10], [1000]), ([2, 9], [900])], ids=["missed", "awaited"])
def test_missed_multiple_is_left_out(tmp_path: Path, newest: list[int], evaluated: list[int]) -> None:
    """Its versions are deleted; where it was waited for, the server keeps too few, and the newest has to do."""
    scene = _every_250(tmp_path, newest)
    every_version = scene.source.first_after
    scene.source.first_after = lambda env_steps, every: (  # type: ignore[method-assign]
        every_version(env_steps, every) if env_steps >= 1000 else None
    )
    scene.evaluator.run()
    assert [row.env_steps for row in scene.logs.scores.rows] == evaluated


@pytest.mark.parametrize("mean", [-10.0, 5.0])
def test_evaluator_tags_the_best_version_only_when_it_is_better(tmp_path: Path, mean: float) -> None:
    """The tag moves with a new best mean and stays otherwise."""
    scene = _scene(tmp_path, {1: [0.0], 2: [mean]}, _SETTINGS)
    scene.evaluator.run()
    assert scene.source.tags["best"] == (2 if mean > 0 else 1)


@pytest.mark.parametrize("fresh, best", [(47.0, 1), (205.0, 2)], ids=["refuted", "confirmed"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_best_version_stays_tagged_until_fresh_episodes_have_been_played(
    tmp_path: Path, fresh: float, best: int, *, is_killed: bool
) -> None:
    """Version 1 is kept by its tag alone: the server has newer ones. An evaluator that was killed is replaced."""
    tags, means = dict[str, int](), {1: [60.0], 2: [220.0, fresh]}
    scene = _scene(tmp_path, means, _SETTINGS, target_return=200.0, max_env_steps=200)
    scene.source.tags, play, during = tags, scene.runner.run, list[dict[str, int]]()

    def note(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        if len(seeds) < 100:
            del tags["evaluated"]  # as if the server had been away
            return play(params, seeds, is_stopped)
        during.append(dict(tags))
        if is_killed:
            raise SystemExit
        return play(params, seeds, is_stopped)

    scene.runner.run = note  # type: ignore[method-assign]
    if is_killed:
        with pytest.raises(SystemExit):
            scene.evaluator.run()
        scene.logs.close()
        scene = _scene(tmp_path, means, _SETTINGS, target_return=200.0, max_env_steps=200)
        scene.source.tags, scene.source.offered = tags, 2
        scene.finish.set()
    verdict = scene.evaluator.run()
    assert verdict is not None
    assert during == [{"best": 1, "evaluated": 2}]
    assert tags == {"best": best, "evaluated": 2, "verdict": 2}
    assert scene.report(verdict)["best_version"] == best


def test_best_version_is_tagged_when_its_confirmation_hangs_at_the_end(tmp_path: Path) -> None:
    """The result that another thread writes then names the version with the largest mean."""
    scene = _scene(tmp_path, {1: [60.0], 2: [220.0]}, _SETTINGS, target_return=200.0, max_env_steps=200)
    play = scene.runner.run

    def hang(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        if len(seeds) == 100:
            verdict = scene.evaluator.without_more()
            assert verdict is not None
            assert scene.report(verdict)["best_version"] == scene.source.tags["best"] == 2
            raise SystemExit
        return play(params, seeds, is_stopped)

    scene.runner.run = hang  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        scene.evaluator.run()


def test_refuted_version_is_not_shown_as_the_best(tmp_path: Path) -> None:
    """The metric is the mean of the version that is tagged, during the confirmation and after it."""
    scene = _scene(tmp_path, {1: [60.0], 2: [220.0, 47.0]}, _SETTINGS, target_return=200.0)
    play, shown = scene.runner.run, list[float | None]()

    def note(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        shown.append(REGISTRY.get_sample_value("tidemill_evaluator_best_return_mean"))
        return play(params, seeds, is_stopped)

    scene.runner.run = note  # type: ignore[method-assign]
    scene.evaluator.run()
    assert [*shown[2:], REGISTRY.get_sample_value("tidemill_evaluator_best_return_mean")] == [60.0, 60.0]


def test_version_that_needs_no_confirmation_is_shown_as_the_best(tmp_path: Path) -> None:
    """The metric has the score that ended the run."""
    settings = EvaluatorSettings(confirm_episodes=0, min_interval_s=0.0, video=False)
    scene = _scene(tmp_path, {1: [60.0], 2: [220.0]}, settings, target_return=200.0)
    scene.evaluator.run()
    assert REGISTRY.get_sample_value("tidemill_evaluator_best_return_mean") == 220.0


def test_last_evaluation_that_does_not_end_is_broken_off_and_the_scores_before_it_count(tmp_path: Path) -> None:
    """Training is told to end before it, the result has the reason, and the version measured before is the one."""
    settings = dataclasses.replace(_SETTINGS, last_timeout_s=30.0)
    scene = _scene(tmp_path, {1: [50.0], 2: [60.0]}, settings, max_env_steps=200)
    play, told = scene.runner.run, list[int]()
    scene.evaluator._events = EvaluatorEvents(on_limit=told.append)

    def endless(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        if params.number == 1:
            return play(params, seeds, is_stopped)
        assert told == [2], "training goes on while the last version is measured"
        assert next(ask for ask in range(1000) if is_stopped()) >= 25
        return None

    scene.runner.run = endless  # type: ignore[method-assign]
    verdict = scene.evaluator.run()
    reason = "run.max_env_steps (200) reached; the last evaluation was not completed"
    assert verdict == RunVerdict(False, reason, 1)
    result = scene.report(verdict)
    assert (result["mean_return"], result["env_steps"], result["trained_env_steps"]) == (50.0, 100, 200)


def test_run_that_was_never_evaluated_has_the_steps_of_its_newest_version(tmp_path: Path) -> None:
    """The environment fails in every episode: the run continues to its limit, and its result counts what was played.

    The reason is told each time, and stands in the result.
    """
    scene = _scene(tmp_path, {1: [], 2: []}, _SETTINGS, max_env_steps=200)
    told = list[tuple[int, str]]()
    scene.evaluator._events = EvaluatorEvents(on_refusal=lambda *refusal: told.append(refusal))

    def failing(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        raise EpisodesFailed("no episode could be played to its end")

    scene.runner.run = failing  # type: ignore[method-assign]
    verdict = scene.evaluator.run()
    assert verdict is not None
    result = scene.report(verdict)
    assert (result["mean_return"], result["env_steps"], result["params_version"]) == (None, 200, 2)
    why = "the last evaluation was not completed: no episode could be played to its end"
    assert result["reason"] == f"run.max_env_steps (200) reached; {why}"
    assert told == [(1, "no episode could be played to its end"), (2, "no episode could be played to its end")]


def test_evaluation_whose_episodes_mostly_failed_is_no_score(tmp_path: Path) -> None:
    """Version 1 has a score with 12 of 25 episodes failed; version 2, with 13, is neither the best nor a success."""
    scene = _scene(tmp_path, {1: [], 2: []}, _SETTINGS, max_env_steps=200, target_return=400.0)

    def lucky(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        failed = 11 + params.number
        left = len(seeds) - failed
        returns = np.full(left, 50.0 if params.number == 1 else 500.0)
        return Evaluation(returns, np.full(left, 7), tuple(seeds[failed:]), failed)

    scene.runner.run = lucky  # type: ignore[method-assign]
    verdict = scene.evaluator.run()
    why = "the environment failed in 13 of 25 episodes; at most half may fail"
    reason = f"run.max_env_steps (200) reached; the last evaluation was not completed: {why}"
    assert verdict == RunVerdict(False, reason, 1)
    assert [(row.params_version, row.episodes) for row in scene.logs.scores.rows] == [(1, 13)]
    assert scene.source.tags["best"] == 1


def test_last_evaluation_in_a_container_that_was_paused_has_a_score(tmp_path: Path) -> None:
    """A pause within a step, longer than the bound of the evaluation, breaks nothing off."""
    scene = _scene(tmp_path, {1: [50.0]}, _SETTINGS, max_env_steps=100)
    clock, play = Clock(1e6), scene.runner.run
    scene.evaluator._now = clock

    def paused(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        assert not is_stopped()
        clock.now_s += 10 * _SETTINGS.last_timeout_s
        return play(params, seeds, is_stopped)

    scene.runner.run = paused  # type: ignore[method-assign]
    assert scene.evaluator.run() == RunVerdict(False, "run.max_env_steps (100) reached", 1)
    assert [row.mean for row in scene.logs.scores.rows] == [50.0]


def test_last_evaluation_with_a_slow_start_is_broken_off_and_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    """Environments are made one after the other before anything is asked; after that it is asked at every step."""
    scene = _scene(tmp_path, {1: [50.0]}, dataclasses.replace(_SETTINGS, last_timeout_s=3.0), max_env_steps=100)
    told: list[RunVerdict] = []
    scene.evaluator._events, scene.evaluator._hang_s = EvaluatorEvents(on_hang=told.append), 0.5
    scene.evaluator._now = time.monotonic

    def slow(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        threading.Event().wait(2.0)
        wait_until(is_stopped, "the bound", longest_pause_s=0.01)
        return None

    scene.runner.run = slow  # type: ignore[method-assign]
    verdict = scene.evaluator.run()
    assert verdict is not None
    assert "not completed" in verdict.reason
    assert told == []


def test_environment_that_never_returns_from_a_step_has_a_result_all_the_same(tmp_path: Path) -> None:
    """Another thread is told how the run ends, since the one that plays hangs."""
    settings = dataclasses.replace(_SETTINGS, last_timeout_s=0.01)
    scene = _scene(tmp_path, {1: [50.0]}, settings, max_env_steps=100)
    told: list[RunVerdict] = []
    hanging = threading.Event()

    def hang(verdict: RunVerdict) -> None:
        told.append(verdict)
        hanging.set()

    scene.evaluator._events = EvaluatorEvents(on_hang=hang)
    scene.evaluator._hang_s = 0.01

    def hang_in_step(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        assert hanging.wait(30)
        return None

    scene.runner.run = hang_in_step  # type: ignore[method-assign]
    scene.evaluator.run()
    assert [verdict.version for verdict in told] == [None]


def test_run_ends_as_it_is_only_once_it_is_over(tmp_path: Path) -> None:
    """An environment that hangs before the last evaluation costs a restart; in it, or after it, the run ends."""
    scene = _scene(tmp_path, {1: [50.0]}, _SETTINGS, max_env_steps=100)
    assert scene.evaluator.without_more() is None
    during: list[RunVerdict | None] = []
    run = scene.runner.run

    def note(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        during.append(scene.evaluator.without_more())
        return run(params, seeds, is_stopped)

    scene.runner.run = note  # type: ignore[method-assign]
    verdict = scene.evaluator.run()
    assert [each.reason for each in during if each] == [
        "run.max_env_steps (100) reached; the last evaluation was not completed"
    ]
    assert scene.evaluator.without_more() == verdict


def test_step_has_a_limit_once_the_run_is_over(tmp_path: Path) -> None:
    """Whatever `env.step_timeout_s` is: that of the last evaluation, and ten seconds for the step to be noticed."""
    settings = dataclasses.replace(_SETTINGS, last_timeout_s=30.0)
    scene = _scene(tmp_path, {1: [50.0]}, settings, max_env_steps=100)
    assert scene.evaluator.step_limit_s() == math.inf
    scene.evaluator.run()
    assert scene.evaluator.step_limit_s() == 40.0
    ended = _scene(tmp_path / "ended", {1: [50.0]}, settings)
    ended.evaluator._finish.set()  # as the learner does while a step hangs
    assert ended.evaluator.step_limit_s() == 40.0


def test_scores_wait_for_room_on_the_disk(tmp_path: Path) -> None:
    """A file that cannot grow is tried again, and has each row once; stopping ends the wait."""
    tries: list[int] = []

    def write() -> str:
        tries.append(len(tries))
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "no space left on device")
        return "written"

    stop = threading.Event()
    assert when_there_is_room(write, stop, retry_s=0.001) == "written"
    assert tries == [0, 1, 2]
    stop.set()
    with pytest.raises(OSError, match="No space left"):
        when_there_is_room(partial(append_whole, Path("/dev/full"), "row"), stop)


def test_parameter_server_that_is_away_at_the_end_costs_no_score(tmp_path: Path) -> None:
    """The version measured last stands in the result, not that nothing was ever evaluated."""
    scene = _scene(tmp_path, {1: [50.0]}, _SETTINGS)
    scene.evaluator.run()
    scene.logs.close()
    again = _scene(tmp_path, {}, _SETTINGS)
    again.source.newest = lambda _wait_s=0.0: None  # type: ignore[method-assign]
    again.finish.set()
    verdict = again.evaluator.run()
    reason = "training has ended; the last evaluation was not completed: no parameters could be fetched"
    assert verdict == RunVerdict(False, reason, 1)
    result = again.report(verdict)
    assert (result["mean_return"], result["params_version"], result["env_steps"]) == (50.0, 1, 100)


def test_run_whose_only_evaluation_found_no_parameter_server_continues_at_its_limit(tmp_path: Path) -> None:
    """`tidemill resume` makes up for the evaluation, although the run has reached its limit."""
    (tmp_path / "scene").mkdir()
    (tmp_path / "scene" / "wall_clock.json").write_text(json.dumps({"format": 1, "wall_s": 30.0}))
    scene = _scene(tmp_path, {1: [50.0]}, _SETTINGS, max_wall_s=20.0)
    scene.source.newest = lambda _wait_s=0.0: None  # type: ignore[method-assign]
    verdict = scene.evaluator.run()
    assert verdict is not None
    assert scene.report(verdict)["mean_return"] is None
    config = RunConfig(run=scene.config.run)
    assert progress(config.run.folder)["max_wall_s"] >= 20.0
    check_limits(config, config, config.run.folder)


@pytest.mark.parametrize("second, best", [([210.0, 205.0], 2), ([40.0], 1)], ids=["solved", "at a limit"])
def test_last_tags_wait_for_a_parameter_server_that_is_away(tmp_path: Path, second: list[float], best: int) -> None:
    """It may be starting again when the run is decided: both its verdict and its best version are named."""
    scene = _scene(tmp_path, {1: [50.0], 2: second}, _SETTINGS, target_return=200.0, max_env_steps=200)
    scene.source.is_away = True
    assert scene.evaluator.run() is not None
    assert scene.source.tags == {"best": best, "verdict": 2}


@pytest.mark.parametrize("is_away", [False, True])
def test_version_that_the_parameter_server_has_deleted_is_not_measured(tmp_path: Path, *, is_away: bool) -> None:
    """It could be named as the best but not be had; also if it is deleted while the server cannot be asked."""
    scene = _scene(tmp_path, {1: [50.0], 2: [90.0], 3: [40.0]}, _SETTINGS)
    offer, play = scene.source.newer_than, scene.runner.run

    def newer_than(number: int) -> Params | None:
        scene.source.is_away = is_away and number == 1
        return offer(number)

    def played(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        scene.source.is_away = False
        return play(params, seeds, is_stopped)

    scene.source.newer_than, scene.runner.run = newer_than, played  # type: ignore[method-assign]
    scene.source.deleted = {2}
    scene.evaluator.run()
    assert [row.params_version for row in scene.logs.scores.rows] == [1, 3]
    assert scene.source.tags == {"best": 1, "evaluated": 3}


def test_last_version_is_confirmed_though_the_parameter_server_has_deleted_it(tmp_path: Path) -> None:
    """It is measured all the same, so the run is solved if fresh episodes agree."""
    scene = _scene(tmp_path, {1: [210.0, 205.0]}, _SETTINGS, max_env_steps=100, target_return=200.0)
    scene.source.deleted = {1}
    assert scene.evaluator.run() == RunVerdict(True, "a mean return of 200 was reached", 1)
    assert [row.mean for row in scene.logs.confirmations.rows] == [205.0]


def test_tag_that_keeps_the_best_version_stays_until_it_is_tagged_as_the_best(tmp_path: Path) -> None:
    """The parameter server does not answer in time when `best` is set; it would then delete the version."""
    scene = _scene(tmp_path, {1: [60.0], 2: [50.0]}, _SETTINGS)
    mark = scene.source.tag
    scene.source.tag = lambda tag, *other: None if tag == "best" else mark(tag, *other)  # type: ignore[method-assign]
    scene.evaluator.run()
    assert scene.source.tags == {"evaluated": 1}


def test_best_version_is_tagged_once_the_parameter_server_is_back(tmp_path: Path) -> None:
    """Before the next evaluation takes the tag away that has kept it meanwhile."""
    scene = _scene(tmp_path, {1: [60.0], 2: [50.0]}, _SETTINGS)
    offer, mark, kept = scene.source.newer_than, scene.source.tag, {1, 2}

    def newer_than(number: int) -> Params | None:
        scene.source.is_away = number == 0  # while version 1 is evaluated
        return offer(number)

    def tag(tag: str, number: int, wait_s: float = 0.0) -> bool | None:
        is_set = number in kept and mark(tag, number, wait_s)
        if is_set and tag == "evaluated":
            kept.intersection_update(scene.source.tags.values())
        return is_set

    scene.source.newer_than = newer_than  # type: ignore[method-assign]
    scene.source.tag = tag  # type: ignore[method-assign]
    scene.evaluator.run()
    assert scene.source.tags == {"best": 1, "evaluated": 2}


def test_time_of_an_evaluation_that_is_killed_counts_after_a_restart(tmp_path: Path) -> None:
    """A run whose evaluator is killed in each evaluation has no other end than its limit of time."""
    scene = _scene(tmp_path, {1: [150.0]}, _SETTINGS, max_wall_s=1000.0)

    def killed(params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool]) -> Evaluation | None:
        del params, seeds
        while scene.logs.clock.wall_s() < 100.0:
            assert not is_stopped()
        raise SystemExit

    scene.runner.run = killed  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        scene.evaluator.run()
    assert WallClock(tmp_path / "scene" / "wall_clock.json", 7_000.0, Clock(7_000.0)).wall_s() > 80.0


def test_confirmation_that_held_counts_after_a_restart(tmp_path: Path) -> None:
    """The evaluator was killed between the confirmation and the result, as while it filmed."""
    means = {4: [250.0, 240.0]}
    scene = _scene(tmp_path, means, _SETTINGS, target_return=200.0, max_env_steps=400)
    scene.evaluator.run()
    scene.logs.close()
    again = _scene(tmp_path, {4: []}, _SETTINGS, target_return=200.0, max_env_steps=400)
    again.finish.set()
    again.source.offered = 4
    verdict = again.evaluator.run()
    assert verdict == RunVerdict(True, "a mean return of 200 was reached", 4)
    result = again.report(verdict)
    assert (result["confirmed_mean"], result["failed_confirmations"]) == (240.0, 0)


def test_filming_that_killed_the_evaluator_is_not_tried_again_until_the_run_continues(tmp_path: Path) -> None:
    """A renderer may crash the process: the next evaluator writes the result without a video."""
    scene = _scene(tmp_path, {4: [250.0]}, dataclasses.replace(_SETTINGS, video=True))
    folder = scene.config.run.folder
    begun = list[bool]()

    class Runner(EpisodeRunner):
        def __init__(self) -> None:
            """Play nothing."""

        def record(self, *_: object) -> Any:  # noqa: ANN401
            """Note whether the next evaluator could tell."""
            begun.append((folder / FILMING).exists())
            raise RuntimeError("no display")

    scene.source.best = lambda: _params(4)  # type: ignore[method-assign]
    source = cast(ParamsSource, scene.source)

    def report() -> None:
        verdict = RunVerdict(False, "training has ended", None)
        write_report(verdict, scene.config, source, Runner(), scene.logs, CurveDrawing(scene.config))

    report()
    assert begun == [True]
    assert not (folder / FILMING).exists()
    (folder / FILMING).touch()  # of an evaluator that was killed
    report()
    assert begun == [True]
    assert (folder / "result.json").exists()
    set_result_aside(folder)
    report()
    assert begun == [True, True]


@pytest.mark.parametrize("has_ended", [True, False])
def test_confirmation_that_held_counts_after_the_learner_went_back_to_its_version(
    has_ended: bool, tmp_path: Path
) -> None:
    """The restarted evaluator finds the version under another number, and fresh episodes might not confirm it again."""
    scene = _scene(tmp_path, {4: [250.0, 240.0]}, _SETTINGS, target_return=200.0)
    scene.evaluator.run()
    scene.logs.close()
    again = _scene(tmp_path, {6: [250.0, 190.0]}, _SETTINGS, target_return=200.0)
    rolled_back = dataclasses.replace(_params(6).version, metadata=_params(4).version.metadata)
    newest = dataclasses.replace(_params(6), version=rolled_back)
    if has_ended:
        again.finish.set()
        again.source.newest = lambda _wait_s=0.0: newest  # type: ignore[method-assign]
    else:
        again.source.newer_than = lambda number: newest  # type: ignore[method-assign]
    verdict = again.evaluator.run()
    assert verdict == RunVerdict(True, "a mean return of 200 was reached", 4)
    result = again.report(verdict)
    assert (result["confirmed_mean"], result["best_version"], result["failed_confirmations"]) == (240.0, 4, 0)
    assert again.source.tags == {"best": 4, "verdict": 4}


@pytest.mark.parametrize(
    "target, before, now", [(220.0, [205.0, 230.0], [205.0]), (210.0, [221.0, 215.0], [221.0, 214.0])]
)
def test_confirmation_before_an_earlier_end_does_not_end_a_run_that_was_resumed(
    tmp_path: Path, target: float, before: list[float], now: list[float]
) -> None:
    """The learner publishes that version under another number; its target, or the task, may have changed since."""
    scene = _scene(tmp_path, {4: before}, _SETTINGS, target_return=200.0)
    verdict = scene.evaluator.run()
    assert verdict is not None
    scene.report(verdict)
    set_result_aside(scene.config.run.folder)
    again = _scene(tmp_path, {6: now}, _SETTINGS, target_return=target)
    restored = dataclasses.replace(_params(6).version, metadata=_params(4).version.metadata)
    again.source.newest = lambda _wait_s=0.0: dataclasses.replace(_params(6), version=restored)  # type: ignore[method-assign]
    again.finish.set()
    verdict = again.evaluator.run()
    assert verdict is not None
    assert (verdict.solved, verdict.version, again.source.tags["verdict"]) == (target == 210.0, 6, 6)


@pytest.mark.parametrize("target, failed", [({}, 0), ({"target_return": 300.0}, 0), ({"target_return": 245.0}, 1)])
def test_confirmation_fails_only_if_its_version_reached_the_present_target(
    tmp_path: Path, target: dict[str, float], failed: int
) -> None:
    """The confirmation held at the target that the run had before it was resumed with another one, or without."""
    scene = _scene(tmp_path, {4: [250.0, 240.0]}, _SETTINGS, target_return=200.0)
    scene.evaluator.run()
    scene.logs.close()
    again = _scene(tmp_path, {4: []}, _SETTINGS, **target)
    assert again.report(RunVerdict(False, "training has ended", 4))["failed_confirmations"] == failed


def test_run_that_is_stopped_while_the_parameter_server_is_away_has_no_result(tmp_path: Path) -> None:
    """It can be resumed."""
    scene = _scene(tmp_path, {}, _SETTINGS)

    def stopped(_wait_s: float = 0.0) -> None:
        scene.evaluator._stop.set()

    scene.source.newest = stopped  # type: ignore[method-assign]
    scene.finish.set()
    assert scene.evaluator.run() is None
