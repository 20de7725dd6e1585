"""An actor's curves, as TensorBoard reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import REGISTRY

from tests.support.event_files import scalars
from tidemill.envs.interface import EpisodeSummary, VectorStep
from tidemill.services.actor.acting import metrics as actor_metrics
from tidemill.services.actor.acting.metrics import ActorCurves, ActorMetrics
from tidemill.services.launcher.view.curves import env_failures, last_env_failure


def test_line_of_progress_is_a_point_as_well(tmp_path: Path) -> None:
    """Over the decisions of all actors: the mean return of its newest episodes, once there is one, and its version.

    Nothing while an actor in lock-step plays rounds again that were stored.
    """
    decisions, is_past = iter([10, 20]), iter([False, True, False])
    curves = ActorCurves(tmp_path, "actor-3", lambda: next(decisions))
    metrics = ActorMetrics(0.0, curves, lambda: next(is_past))
    nothing = np.zeros(2, np.bool_)
    ended = tuple(EpisodeSummary(i, episode_return, 5, True) for i, episode_return in enumerate((3.0, 4.0)))
    for episodes, version in (((), 7), ((), 7), (ended, 8)):
        metrics.count(
            VectorStep(np.zeros((2, 1)), np.zeros(2, np.float32), nothing, nothing, nothing, nothing, episodes),
            version,
            4 * version,
        )
    curves.close()
    lines = [json.loads(line) for line in (tmp_path / "curves" / "actor-3.jsonl").read_text().splitlines()]
    assert [(line["step"], line["env_steps"], line.get("actor/episode_return")) for line in lines] == [
        (28, 10, None),
        (32, 20, 3.5),
    ]
    assert scalars(tmp_path / "tensorboard" / "actor-3", "actor/episode_return") == [(20, 3.5)]
    assert scalars(tmp_path / "tensorboard" / "actor-3", "actor/params_version") == [(10, 7.0), (20, 8.0)]
    assert [
        step for step, rate in scalars(tmp_path / "tensorboard" / "actor-3", "actor/env_steps_per_s") if rate > 0
    ] == [10, 20]


def test_first_failure_of_an_environment_is_a_point_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view warns of what it reads there; a short run would end before the next line of progress."""
    monkeypatch.setattr(actor_metrics, "_FIRST_FAILURE_S", 0.0)
    counts = iter([{}, {"invalid": 2}, {"invalid": 3}])
    monkeypatch.setattr(actor_metrics, "failure_counts", lambda: next(counts))
    curves = ActorCurves(tmp_path, "actor-3", lambda: 10)
    metrics, no = ActorMetrics(1e9, curves), np.zeros(2, np.bool_)
    for _ in range(3):
        metrics.count(VectorStep(np.zeros((2, 1)), np.zeros(2, np.float32), no, no, no, no, ()), 7)
    curves.close()
    lines = [json.loads(line) for line in (tmp_path / "curves" / "actor-3.jsonl").read_text().splitlines()]
    assert [line["actor/env_failures/invalid"] for line in lines] == [2.0]


def test_last_point_has_the_failures_since_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a step: nothing may be up before a short run ends. A repeated end writes nothing new."""
    monkeypatch.setattr(actor_metrics, "failure_counts", lambda: {"raised": 3})
    monkeypatch.setattr(actor_metrics, "last_failure", lambda: "no licence left")
    monkeypatch.setattr(actor_metrics, "_FIRST_FAILURE_S", 1e9)
    for name, is_past in (("actor-3", False), ("actor-4", True)):
        curves = ActorCurves(tmp_path, name, lambda: 10)
        metrics = ActorMetrics(1e9, curves, lambda is_past=is_past: is_past)  # type: ignore[misc]
        metrics.finish(7, 28)
        metrics.finish(7, 28)
        curves.close()
    [line] = [json.loads(line) for line in (tmp_path / "curves" / "actor-3.jsonl").read_text().splitlines()]
    assert (line["step"], line["actor/env_failures/raised"]) == (28, 3.0)
    assert last_env_failure(tmp_path) == line["actor/last_env_failure"] == "no licence left"
    assert env_failures(tmp_path) == {"actor-3": {"raised": 3}}
    assert scalars(tmp_path / "tensorboard" / "actor-3", "actor/env_failures/raised") == [(10, 3.0)]


def test_last_point_has_the_steps_since_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run ends before the first line of progress; the rate of a moment would be noise."""
    monkeypatch.setattr(actor_metrics, "failure_counts", dict)
    no, written = np.zeros(2, np.bool_), []
    for least_s in (0.0, 1e9):
        monkeypatch.setattr(actor_metrics, "_FIRST_FAILURE_S", least_s)
        curves = ActorCurves(tmp_path, f"actor-{least_s:g}", lambda: 10)
        metrics = ActorMetrics(1e9, curves)
        metrics.count(VectorStep(np.zeros((2, 1)), np.zeros(2, np.float32), no, no, no, no, ()), 7)
        metrics.finish(7)
        curves.close()
        written.append((tmp_path / "curves" / f"actor-{least_s:g}.jsonl").exists())
    assert written == [True, False]


def test_steps_that_are_played_again_are_not_counted_again() -> None:
    """An actor in lock-step that restarts plays its whole history first."""

    def counted() -> float:
        return REGISTRY.get_sample_value("tidemill_actor_env_steps_total") or 0.0

    is_past = iter([True, False])
    metrics, before = ActorMetrics(1e9, is_past=lambda: next(is_past)), counted()
    no = np.zeros(2, np.bool_)
    step = VectorStep(np.zeros((2, 1)), np.zeros(2, np.float32), no, no, no, no, ())
    metrics.count(step, 7)
    assert counted() == before
    assert REGISTRY.get_sample_value("tidemill_actor_params_version") == 7.0  # it seemed to act with none meanwhile
    metrics.count(step, 8)
    assert counted() == before + 2
