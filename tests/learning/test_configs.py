"""The whole cluster learns: published configs, and small ones, reach their target, confirmed on fresh episodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.launched import ROOT, TRAINED_S, launched

pytestmark = [pytest.mark.learning, pytest.mark.timeout(TRAINED_S + 600)]

_STEPS = ("--run.max-env-steps", "300000", "--run.max-wall-s", "0")


@pytest.mark.parametrize(
    "name, target",
    [
        ("cartpole_dqn", 400.0),  # below the config's own 475, which it crosses later and loses again at times
        ("pendulum_sac", -200.0),
    ],
)
def test_config_reaches_its_target(name: str, target: float, tmp_path: Path) -> None:
    """The run ends by itself as solved, well before its limit of steps; nothing is left running."""
    config = ROOT / "configs" / f"{name}.yaml"
    limits = ("--run.target_return", str(target), *_STEPS, "--evaluator.no-video")
    with launched("train", "--config", str(config), "--run.root", str(tmp_path), *limits) as cluster:
        assert cluster.wait(TRAINED_S) == 0
        assert cluster.children() == {}
    result = json.loads((tmp_path / name / "result.json").read_text())
    assert result["solved"], result
    assert result["target_return"] == target
    assert min(result["mean_return"], result["confirmed_mean"]) >= target
    assert result["confirm_episodes"] == 50


_FLIPS = (
    *("--config", str(ROOT / "examples" / "hindsight.yaml"), "--env.id", "examples.bit_flip:BitFlip"),
    "--evaluator.no-video",
)


def test_hindsight_reaches_every_goal(tmp_path: Path) -> None:
    """Twelve bits: every goal within 50,000 steps."""
    with launched("train", *_FLIPS, "--run.root", str(tmp_path), "--run.name", "with") as cluster:
        assert cluster.wait(TRAINED_S) == 0
    result = json.loads((tmp_path / "with" / "result.json").read_text())
    assert result["solved"], result


def test_goals_are_hardly_ever_met_without_hindsight(tmp_path: Path) -> None:
    """After 6,500 steps with the same settings at least nine of ten are unmet."""
    without = ("--run.name", "without", "--table.hindsight", "0", "--run.max_env_steps", "6500")
    with launched("train", *_FLIPS, "--run.root", str(tmp_path), *without) as cluster:
        cluster.wait(TRAINED_S)
    lines = (tmp_path / "without" / "episodes.csv").read_text().splitlines()[1:]
    met = [float(line.split(",")[3]) > -12 for line in lines]
    assert len(met) >= 100
    assert sum(met) / len(met) < 0.1
