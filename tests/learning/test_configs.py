"""The whole cluster learns: published configs, and small ones, reach their target, confirmed on fresh episodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.launched import ROOT, launched

pytestmark = [pytest.mark.learning, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "name, target",
    [
        ("cartpole_dqn", 400.0),  # below the config's own 475, which it crosses later and loses again at times
        ("pendulum_sac", -200.0),
    ],
)
def test_config_reaches_its_target(name: str, target: float, tmp_path: Path) -> None:
    """The run ends by itself as solved, well before its limit on a free machine; nothing is left running."""
    config = ROOT / "configs" / f"{name}.yaml"
    limits = ("--run.target_return", str(target), "--run.max_wall_s", "700", "--evaluator.no-video")
    with launched("train", "--config", str(config), "--run.root", str(tmp_path), *limits) as cluster:
        assert cluster.wait(800.0) == 0
        assert cluster.children() == {}
    result = json.loads((tmp_path / name / "result.json").read_text())
    assert result["solved"], result
    assert result["target_return"] == target
    assert min(result["mean_return"], result["confirmed_mean"]) >= target
    assert result["confirm_episodes"] == 50


def test_hindsight_reaches_goals_that_are_never_met_without_it(tmp_path: Path) -> None:
    """Twelve bits: every goal within 50,000 steps; without hindsight 6,500 steps leave at least nine of ten unmet."""
    config = ["--config", str(ROOT / "examples" / "hindsight.yaml"), "--run.root", str(tmp_path)]
    config += ["--env.id", "examples.bit_flip:BitFlip", "--evaluator.no-video"]
    with launched("train", *config, "--run.name", "with", "--run.max_wall_s", "700") as cluster:
        assert cluster.wait(800.0) == 0
    result = json.loads((tmp_path / "with" / "result.json").read_text())
    assert result["solved"], result
    without = ("--run.name", "without", "--table.hindsight", "0", "--run.max_env_steps", "6500")
    with launched("train", *config, *without) as cluster:
        cluster.wait(800.0)
    lines = (tmp_path / "without" / "episodes.csv").read_text().splitlines()[1:]
    met = [float(line.split(",")[3]) > -12 for line in lines]
    assert len(met) >= 100
    assert sum(met) / len(met) < 0.1
