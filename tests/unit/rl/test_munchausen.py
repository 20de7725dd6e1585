"""Munchausen: its two terms by hand, and the values that its own iteration has on a small problem."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.naming import naming
from tests.unit.rl.test_dqn import CHAIN, CPU, chain_batch
from tidemill.errors import ConfigError
from tidemill.rl import losses
from tidemill.rl.agents.dqn import DQNAgent, DQNPolicy
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.settings.q_learning import DQNConfig

T = 0.5
Q = torch.tensor([[0.0, T * math.log(3.0)]])
"""Its policy at temperature 1/2 has the probabilities 1/4 and 3/4."""


def test_soft_value_by_hand() -> None:
    """1/4 * (0 + T log 4) + 3/4 * (T log 3 + T log 4/3) = T log 4; of quantiles each by itself."""
    torch.testing.assert_close(losses.soft_value(Q[:, :, None], Q, T), torch.tensor([[T * math.log(4.0)]]))
    quantiles = torch.tensor([[[8.0, 0.0], [4.0, 4.0]]])
    entropy = T * (0.25 * math.log(4.0) + 0.75 * math.log(4.0 / 3.0))
    expected = torch.tensor([[0.25 * 8.0 + 0.75 * 4.0 + entropy, 0.75 * 4.0 + entropy]])
    torch.testing.assert_close(losses.soft_value(quantiles, Q, T), expected)


def test_bonus_by_hand() -> None:
    """T log 1/4 = -.693 is cut at -.5, T log 3/4 = -.144 is not; both times .9."""
    bonus = losses.log_policy_bonus(Q.expand(2, -1), torch.tensor([0, 1]), 0.9, T, -0.5)
    torch.testing.assert_close(bonus, torch.tensor([-0.45, 0.9 * T * math.log(0.75)]))


def test_illegal_action_counts_for_nothing() -> None:
    """With a third action that must not be taken all is as without it, whatever its values."""
    values, q = torch.tensor([[[8.0], [4.0], [1e9]]]), torch.cat((Q, torch.tensor([[-torch.inf]])), dim=1)
    torch.testing.assert_close(losses.soft_value(values, q, T), losses.soft_value(values[:, :2], Q, T))
    action = torch.tensor([0])
    bonus = losses.log_policy_bonus(q, action, 0.9, T, -1.0)
    torch.testing.assert_close(bonus, losses.log_policy_bonus(Q, action, 0.9, T, -1.0))


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=6), st.sampled_from([1e-3, 0.03, 1.0, 30.0]))
def test_soft_value_lies_between_the_best_and_that_with_the_largest_entropy(values: list[float], t: float) -> None:
    """T log sum exp(Q / T) is its closed form, at least max Q and at most T log A above it, and always finite."""
    q = torch.tensor([values], dtype=torch.float64)
    soft = losses.soft_value(q[:, :, None], q, t)
    torch.testing.assert_close(soft, t * torch.logsumexp(q / t, dim=1, keepdim=True))
    best = max(values)
    assert best - 1e-6 <= soft.item() <= best + t * math.log(len(values)) + 1e-6


def _iterated(scale: float, temperature: float, lowest: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the fixed point of the paper's iteration on the chain's transitions, float64 [state, action], in NumPy."""
    batch = {name: value.numpy().astype(np.float64) for name, value in chain_batch().items()}
    state, action = batch["observation"].argmax(axis=1), batch["action"].astype(int)
    following = batch["bootstrap_observation"].argmax(axis=1)
    q = np.zeros((3, 2))
    for _ in range(200):
        log_policy = q / temperature - np.log(np.exp(q / temperature).sum(axis=1, keepdims=True))
        value = (np.exp(log_policy) * (q - temperature * log_policy)).sum(axis=1)
        bonus = scale * np.clip(temperature * log_policy[state, action], lowest, 0.0)
        q[state, action] = batch["n_step_return"] + bonus + batch["bootstrap_discount"] * value[following]
    return q


@pytest.mark.parametrize("kind", [{}, {"distribution": "qr", "atoms": 5}, {"distribution": "iqn", "atoms": 8}])
def test_agent_finds_the_fixed_point_of_the_papers_iteration(kind: dict[str, Any]) -> None:
    """With a temperature at which every action counts, and a bound that cuts some of the bonuses."""
    settings: dict[str, Any] = {
        "munchausen_scale": 0.9,
        "munchausen_temperature": 0.2,
        "munchausen_lowest": -0.3,
    }
    config = DQNConfig(
        network="mlp",
        hidden_sizes=(32,),
        double=False,
        learning_rate=1e-2,
        learning_rate_decay_updates=800,
        optimizer_epsilon=1e-5,
        target_update_period=20,
        loss="mse",
        gamma=0.5,
        n_step=1,
        **kind,
        **settings,
    )
    agent = DQNAgent(config, CHAIN, CPU, seed=0)
    for _ in range(700):
        agent.update(chain_batch(), torch.ones(6))
    policy = DQNPolicy(config, CHAIN, PolicyContext(CPU, 0, ActorSlot(num_envs=3)))
    policy.load(agent.policy_state())
    expected = _iterated(0.9, 0.2, -0.3)
    assert np.abs(expected - _iterated(0.0, 0.2, -0.3)).max() > 0.1, "the bonus matters"
    np.testing.assert_allclose(policy.q_values(np.eye(3, dtype=np.float32)), expected, atol=0.03)


@pytest.mark.parametrize("extra, word", [({"double": True}, "double"), ({"distribution": "c51"}, "distribution")])
def test_what_soft_targets_do_not_go_with_is_refused(extra: dict[str, Any], word: str) -> None:
    """An action chosen by the online network, and atoms, whose mixture has no such target."""
    with pytest.raises(ConfigError, match=naming(word, "munchausen_scale")):
        DQNConfig(**{"double": False, "munchausen_scale": 0.9} | extra)
