"""MinAtar's games and the network for them, from examples/suites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.support.extras import EXTRAS, needs_extra
from tests.support.launched import ROOT
from tidemill.config.load import load_config
from tidemill.envs.make import make_env, spec_of
from tidemill.rl.agents.build import build_agent

pytestmark = [
    needs_extra("minatar"),
    pytest.mark.filterwarnings("ignore:.*out of date"),  # v0 has six actions, v1 those that a game uses
]


@pytest.fixture(autouse=True)
def minatar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both modules can be imported, none of the other packages beside MinAtar."""
    (tmp_path / "minatar").symlink_to(EXTRAS / "minatar")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")


@pytest.mark.parametrize("algorithm", ["dqn", "pqn"])
def test_game_is_played_and_seen_by_the_network(algorithm: str) -> None:
    """A field of 10 x 10 with a plane for each kind of object, six actions, and an agent that the config builds."""
    config = load_config(ROOT / "examples" / "suites" / f"minatar_{algorithm}.yaml")
    spec = spec_of(config.env)
    assert spec.observation_shape == (10, 10, 4)
    assert spec.num_actions == 6
    envs = make_env(config.env, 2, training=True)
    try:
        observation = envs.reset(seed=1)
    finally:
        envs.close()
    assert set(np.unique(observation)) == {0, 1}
    build_agent(config.agent, spec, seed=1)


def test_torso_is_a_convolution_of_three_by_three() -> None:
    """Equal to a product with the patches of each place, with a layer norm and without."""
    from suites.minatar_games import MinAtarTorso

    spec = spec_of(load_config(ROOT / "examples" / "suites" / "minatar_dqn.yaml").env)
    observation = torch.rand(5, 10, 10, 4) < 0.2
    for norm in (False, True):
        torso = MinAtarTorso(spec, torch.Generator(), norm=norm)
        patches = functional.unfold(observation.permute(0, 3, 1, 2).float(), 3)
        weight, bias = torso.convolution.parameters()
        convolved = weight.flatten(1) @ patches + bias[:, None]
        if norm:
            flat = convolved.flatten(1)
            deviation = (flat.var(dim=1, correction=0, keepdim=True) + 1e-5).sqrt()
            convolved = (flat - flat.mean(dim=1, keepdim=True)) / deviation
        torch.testing.assert_close(torso(observation), convolved.flatten(1).relu())
