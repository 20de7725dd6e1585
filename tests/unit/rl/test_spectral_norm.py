"""Spectral normalisation, and the torso of BTR that it belongs to."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from tests.support.batches import policy_input, random_batch
from tests.support.naming import naming
from tests.unit.rl.test_networks import GRAY, generator, images
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.dqn import DQNPolicy, build_network
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.networks.layers.linear import linear
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.networks.torsos.impala import ResidualBlock, normalise_spectrally, normalised_weights
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.types import EnvSpec

CPU = torch.device("cpu")
BTR = {"width": 2, "spectral_norm": True, "pool": 6}
SMALL = EnvSpec((36, 36), "uint8", frame_stack=2, num_actions=3)


def test_weight_has_the_largest_singular_value_1() -> None:
    """As NumPy's decomposition sees it, after a few passes in training; a pass in evaluation changes nothing."""
    layer = linear(7, 5, generator())
    before = layer.weight.detach().numpy().copy()
    normalise_spectrally(layer, generator())
    for _ in range(30):
        layer(torch.zeros((1, 7)))
    largest = np.linalg.svd(before)[1][0]
    np.testing.assert_allclose(layer.eval().weight.detach().numpy(), before / largest, rtol=1e-4, atol=1e-6)
    kept = {name: value.clone() for name, value in layer.state_dict().items()}
    layer(torch.ones((1, 7)))
    assert all(torch.equal(value, kept[name]) for name, value in layer.state_dict().items())


def test_redrawn_weights_are_normalised_from_the_start() -> None:
    """A policy may act, and a target be computed, before any pass in training."""
    config = DQNConfig(network="impala", network_settings=BTR, hidden_sizes=(16,), initialisation="xavier")
    blocks = [
        module for module in build_network(config, SMALL, seed=0).eval().modules() if type(module) is ResidualBlock
    ]
    for layer in (layer for block in blocks for layer in (block.first, block.second)):
        assert np.linalg.svd(layer.weight.detach().flatten(1).numpy())[1][0] == pytest.approx(1.0, abs=0.1)
    assert len(blocks) == 6


@pytest.mark.parametrize("training", [True, False])
def test_layers_normalised_together_are_what_each_is_by_itself(training: bool) -> None:
    """Weights, gradients and singular vectors equal those of torch's own, layer by layer, through several passes."""
    together = [ResidualBlock(channels, generator(), spectral_norm=True).train(training) for channels in (4, 6, 4)]
    alone = copy.deepcopy(together)
    for _ in range(3):
        layers = [layer for block in together for layer in (block.first, block.second)]
        weights = normalised_weights(layers)
        expected = [layer.weight for block in alone for layer in (block.first, block.second)]
        for found, each in zip(weights, expected, strict=True):
            torch.testing.assert_close(found, each, rtol=1e-5, atol=1e-7)
        sum((weight**3).sum() for weight in weights).backward()  # type: ignore[union-attr]
        sum((weight**3).sum() for weight in expected).backward()  # type: ignore[union-attr]
    for block, former in zip(together, alone, strict=True):
        torch.testing.assert_close(block.state_dict(), former.state_dict(), rtol=1e-5, atol=1e-7)
        for parameter, own in zip(block.parameters(), former.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, own.grad, rtol=1e-4, atol=1e-6)


def test_weights_are_normalised_in_float32_within_autocast() -> None:
    """They are rounded once, at the end, on every device."""
    block = ResidualBlock(4, generator(), spectral_norm=True)
    layers, former = (block.first, block.second), copy.deepcopy(block)
    with torch.autocast("cpu", torch.bfloat16):
        weights = normalised_weights(layers)
    for weight, layer in zip(weights, (former.first, former.second), strict=True):
        assert weight.dtype is torch.bfloat16
        torch.testing.assert_close(weight, layer.weight.bfloat16(), rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(block.state_dict(), former.state_dict(), rtol=1e-5, atol=1e-6)


def test_torso_has_the_size_of_btrs() -> None:
    """Twice the channels of `impala`, and 64 channels of 6 x 6 features, counted by hand."""
    torso = build_torso("impala", GRAY, generator(), BTR)
    sections = (4 * 32 * 9 + 32 + 4 * 9_248) + (32 * 64 * 9 + 64 + 4 * 36_928) + (64 * 64 * 9 + 64 + 4 * 36_928)
    assert sum(parameter.numel() for parameter in torso.parameters()) == sections
    assert torso.outputs == 64 * 6 * 6
    assert torso(images(GRAY)).shape == (2, 64 * 6 * 6)


def test_seed_alone_decides_the_torso() -> None:
    """The start of the power iteration too, whatever torch's default generator did before."""
    first = build_torso("impala", SMALL, generator(), BTR).state_dict()
    torch.rand(3)
    second = build_torso("impala", SMALL, generator(), BTR).state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_policy_acts_with_what_the_learner_has() -> None:
    """Parameters and singular vectors travel; two calls of a policy agree, and agree with the learner's network."""
    config = DQNConfig(
        network="impala",
        network_settings=BTR,
        hidden_sizes=(16,),
        distribution="iqn",
        atoms=4,
        update_precision="float32",
    )
    agent = build_agent(config, SMALL, "cpu", seed=0)
    agent.update(random_batch(SMALL, 4, generator()), torch.ones(4))
    policy = DQNPolicy(config, SMALL, PolicyContext(CPU, 1, ActorSlot(num_envs=2)))
    policy.load(agent.policy_state())
    seen = images(SMALL)
    once, again = (policy.q_values(seen.numpy()) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    learned = build_network(config, SMALL, seed=0).eval()
    learned.load_state_dict(agent.state_dict()["online"])
    with torch.no_grad():
        expected = learned(seen).mean(dim=-1)
    np.testing.assert_allclose(once, expected.numpy(), rtol=1e-5, atol=1e-6)
    assert policy.act(policy_input(seen.numpy()), evaluation=True).action.shape == (2,)


@pytest.mark.parametrize(
    "name, value", [("width", 0), ("width", 1.5), ("pool", -1), ("spectral_norm", 1), ("depth", 3)]
)
def test_bad_setting_is_refused_by_its_name(name: str, value: object) -> None:
    """One line that says which, what it is and what it must be."""
    with pytest.raises(ConfigError, match=naming("network_settings", name)):
        build_torso("impala", GRAY, generator(), {name: value})  # type: ignore[dict-item]
