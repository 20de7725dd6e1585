"""SAC with quantiles (TQC): targets and losses by hand and by slow definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.batches import CONTINUOUS, random_batch
from tests.support.naming import naming
from tests.unit.rl import reference_update as ref
from tidemill.errors import ConfigError
from tidemill.rl.agents import sac_heads
from tidemill.rl.agents.build import build_agent
from tidemill.rl.settings.soft_actor_critic import SACConfig

QUANTILES = torch.tensor([[[9.0, 1.0, 5.0]], [[2.0, 4.0, 3.0]]])
"""Of two critics and one item."""


def test_largest_of_all_quantiles_are_left_out_whichever_critics_they_are() -> None:
    """One for each critic: 9 and 5, both of the first; none for 0; all but the least of each critic's count for 2."""
    assert sac_heads.QuantileHead(1).kept(QUANTILES).tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert sac_heads.QuantileHead(0).kept(QUANTILES).tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0, 9.0]]
    assert sac_heads.QuantileHead(2).kept(QUANTILES).tolist() == [[1.0, 2.0]]


def test_target_by_hand() -> None:
    """1 + .5 * (each of 1 to 4, less .2 * .5)."""
    head = sac_heads.QuantileHead(dropped_per_critic=1)
    vector = torch.tensor([1.0]), torch.tensor([0.5])
    target = sac_heads.soft_target(*vector, head.kept(QUANTILES), torch.tensor([0.5]), torch.tensor(0.2))
    torch.testing.assert_close(target, torch.tensor([[1.45, 1.95, 2.45, 2.95]]))


def test_loss_and_gradient_by_hand() -> None:
    """Levels 1/4 and 3/4 at 0 and 3 of the target 2: errors 2 and -1, a loss of (1/4 * 1.5 + 1/4 * .5) / 2, twice."""
    quantiles, target, weight = torch.tensor([[[0.0, 3.0]]]), torch.tensor([[2.0]]), torch.tensor([2.0])
    head = sac_heads.QuantileHead(dropped_per_critic=1)
    assert float(head.loss(quantiles, target, weight)) == pytest.approx(0.5)
    gradient, td_error = head.gradient(quantiles, target, weight)
    assert gradient.tolist() == [[[-0.25, 0.25]]]
    assert td_error.tolist() == [0.5]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dropped", [0, 2, 3])
def test_truncation_and_loss_are_the_slow_definitions(dropped: int, seed: int) -> None:
    """Of three critics and four quantiles; the gradient is autograd's."""
    rng = np.random.default_rng(seed)
    bootstrap, quantiles = (rng.normal(scale=2.0, size=(3, 5, 4)) for _ in range(2))
    weight = rng.uniform(0.2, 1.0, 5)
    target = ref.truncated(bootstrap, dropped)
    head = sac_heads.QuantileHead(dropped)
    found = head.kept(torch.from_numpy(bootstrap))
    np.testing.assert_array_equal(found.numpy(), target)
    predicted = torch.from_numpy(quantiles).requires_grad_()
    value = head.loss(predicted, found, torch.from_numpy(weight))
    assert float(value.detach()) == pytest.approx(ref.quantile_huber(quantiles, target, weight))
    (expected,) = torch.autograd.grad(value, predicted)
    gradient, td_error = head.gradient(predicted.detach(), found, torch.from_numpy(weight))
    torch.testing.assert_close(gradient, expected)
    error = np.abs(quantiles.mean(axis=2) - target.mean(axis=1)).mean(axis=0)
    np.testing.assert_allclose(td_error.numpy(), error)


def test_actor_raises_the_mean_of_all_quantiles() -> None:
    """None is left out."""
    gradient = sac_heads.QuantileHead(dropped_per_critic=1).actor_gradient(QUANTILES)
    torch.testing.assert_close(gradient, torch.full((2, 1, 3), -1.0 / 6.0))


def test_smallest_of_any_number_of_values_counts() -> None:
    """Without quantiles, of three critics as of two."""
    q = torch.tensor([[3.0, 1.0], [2.0, 5.0], [4.0, 0.5]]).unsqueeze(-1)
    head = sac_heads.ScalarHead(huber_delta=0.0)
    assert head.kept(q).tolist() == [[2.0], [0.5]]
    assert head.actor_gradient(q).squeeze(-1).tolist() == [[0.0, 0.0], [-0.5, 0.0], [0.0, -0.5]]


def test_critics_have_the_sizes_asked_for() -> None:
    """Five critics of one layer of 12, with 7 quantiles each, beside an actor of one of 8."""
    config = SACConfig(hidden_sizes=(8,), critic_sizes=(12,), critics=5, quantiles=7)
    agent = build_agent(config, CONTINUOUS, seed=0)
    state = agent.state_dict()
    assert state["critic"]["layers.0.weight"].shape == (5, 5, 12)
    assert state["critic"]["layers.1.weight"].shape == (5, 12, 7)
    assert state["actor"]["layers.0.weight"].shape == (1, 3, 8)
    metrics = agent.update(random_batch(CONTINUOUS, 6, torch.Generator().manual_seed(0)), torch.ones(6)).metrics
    assert metrics["loss"] > 0


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"quantiles": 5, "dropped_quantiles_per_critic": 5}, "dropped_quantiles_per_critic 5"),
        ({"dropped_quantiles_per_critic": -1}, "dropped_quantiles_per_critic -1"),
        ({"quantiles": -1}, "quantiles -1"),
        ({"quantiles": 5, "huber_delta": 2.0}, "huber_delta 2.0 0"),
        ({"critics": 0}, "critics 0"),
        ({"critic_sizes": (8, 0)}, "critic_sizes"),
        ({"adam_beta1": 1.0}, "adam_beta1 1.0"),
    ],
)
def test_setting_out_of_range_is_refused(settings: dict[str, Any], message: str) -> None:
    """By its name and value."""
    with pytest.raises(ConfigError, match=naming(message)):
        SACConfig(**settings)
