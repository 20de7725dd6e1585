"""The whole cluster learns: published configs reach their target, confirmed on fresh episodes."""

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
    limits = ("--run.target_return", str(target), "--run.max_wall_s", "700")
    with launched("train", "--config", str(config), "--run.root", str(tmp_path), *limits) as cluster:
        assert cluster.wait(800.0) == 0
        assert cluster.children() == {}
    result = json.loads((tmp_path / name / "result.json").read_text())
    assert result["solved"], result
    assert result["target_return"] == target
    assert min(result["mean_return"], result["confirmed_mean"]) >= target
    assert result["confirm_episodes"] == 50
