"""An actor's curves, as TensorBoard reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.event_files import scalars
from tidemill.envs.interface import EpisodeSummary, VectorStep
from tidemill.services.actor.metrics import ActorCurves, ActorMetrics


def test_line_of_progress_is_a_point_as_well(tmp_path: Path) -> None:
    """Over the decisions of all actors: the mean return of its newest episodes, once there is one, and its version."""
    decisions = iter([10, 20])
    curves = ActorCurves(tmp_path, lambda: next(decisions))
    metrics = ActorMetrics(0.0, curves)
    nothing = np.zeros(2, np.bool_)
    ended = tuple(EpisodeSummary(i, episode_return, 5, True) for i, episode_return in enumerate((3.0, 4.0)))
    for episodes, version in (((), 7), (ended, 8)):
        metrics.count(
            VectorStep(np.zeros((2, 1)), np.zeros(2, np.float32), nothing, nothing, nothing, nothing, episodes), version
        )
    curves.close()
    assert scalars(tmp_path, "actor/episode_return") == [(20, 3.5)]
    assert scalars(tmp_path, "actor/params_version") == [(10, 7.0), (20, 8.0)]
    assert [step for step, rate in scalars(tmp_path, "actor/env_steps_per_s") if rate > 0] == [10, 20]
