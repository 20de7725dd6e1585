"""MuJoCo's tasks, where the simulator is installed: `make mujoco`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="needs make mujoco"),
]


def test_preset_trains_the_suite(tmp_path: Path) -> None:
    """A few updates of the whole cluster from real steps, with an evaluation; a video needs no screen."""
    short = ("--run.max-learner-steps", "60", "--table.min-size", "200", "--agent.start-steps", "100")
    evaluator = ("--evaluator.start-env-steps", "0", "--evaluator.episodes", "1", "--evaluator.video-max-steps", "5")
    limits = ("--env.max-evaluation-steps", "50", "--run.root", str(tmp_path), "--run.name", "run")
    with launched("train", "--config", "hopper_sac_zoo", *short, *evaluator, *limits) as cluster:
        assert cluster.wait(600.0) == 0, cluster.output
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["learner_steps"] == 60
