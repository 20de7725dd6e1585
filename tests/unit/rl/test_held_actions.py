"""Temporally extended exploration: who holds, what, and for how long."""

from __future__ import annotations

import numpy as np
import torch

from tests.support.batches import policy_input
from tidemill.rl.action_noise import HeldActions
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.sac_heads import ScalarHead
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec

_N = 64


def _ticks(held: HeldActions, count: int, may_hold: np.ndarray) -> np.ndarray:
    """Return the actions of `count` steps, [count, N, 2]; the policy always chooses 2, which no held action is."""
    policy = np.full((_N, 2), 2.0, dtype=np.float32)
    return np.stack([held.replace(policy, may_hold) for _ in range(count)])


def test_hold_lasts_between_a_third_and_the_whole_of_its_steps() -> None:
    """A hold is one constant action in [-1, 1] over 20 to 60 steps; then the policy acts again."""
    actions = _ticks(HeldActions(0.01, 60, np.random.default_rng(0)), 3_000, np.ones(_N, np.bool_))
    lengths = []
    for env in range(_N):
        track = actions[:, env, 0]
        edges = np.flatnonzero(np.diff(track)) + 1
        runs = np.split(track, edges)
        lengths += [len(run) for run in runs[1:-1] if run[0] != 2.0]
    assert len(lengths) > 500
    assert min(lengths) >= 20
    assert max(lengths) <= 60
    assert 38 < np.mean(lengths) < 42  # uniform over 20 .. 60


def test_hold_begins_with_its_probability() -> None:
    """At 1 % per step and 40 steps on average, an environment holds 40 / (100 + 40) of the time."""
    actions = _ticks(HeldActions(0.01, 60, np.random.default_rng(1)), 5_000, np.ones(_N, np.bool_))
    assert abs((actions[500:, :, 0] != 2.0).mean() - 40 / 139) < 0.02


def test_environments_that_may_not_hold_act_by_the_policy() -> None:
    """The mask is obeyed."""
    may_hold = np.arange(_N) >= 16
    actions = _ticks(HeldActions(0.1, 9, np.random.default_rng(2)), 200, may_hold)
    assert (actions[:, :16] == 2.0).all()
    assert (actions[:, 16:] != 2.0).any()


def test_hold_ends_with_its_episode() -> None:
    """Where another episode begins, the action is one that is drawn there; elsewhere the hold continues."""
    held = HeldActions(1.0, 1_000, np.random.default_rng(3))
    policy, everywhere = np.full((_N, 2), 2.0, np.float32), np.ones(_N, np.bool_)
    before = held.replace(policy, everywhere)
    is_first = np.arange(_N) < 16
    after = held.replace(policy, everywhere, is_first)
    assert (after != 2.0).all()
    assert (after[:16] != before[:16]).all()
    np.testing.assert_array_equal(after[16:], before[16:])
    assert (held.replace(policy, ~everywhere, is_first)[:16] == 2.0).all()


def test_policy_holds_in_its_noisy_environments_only() -> None:
    """With a certain hold, noisy environments repeat their action while greedy ones follow the observation."""
    config = SACConfig(hidden_sizes=(8,), start_steps=0, greedy_fraction=0.5, hold_probability=1.0, hold_steps=30)
    policy = build_policy(config, EnvSpec((3,), "float32", action_shape=(2,)), seed=0)
    rng = np.random.default_rng(0)
    first, second = (policy.act(policy_input(rng.normal(size=(4, 3)).astype(np.float32)), 1).action for _ in range(2))
    assert (first[2:] == second[2:]).all()
    assert (first[:2] != second[:2]).all()


def test_policy_begins_an_episode_without_the_hold_of_the_one_before() -> None:
    """It draws another action there, in training and for whoever explores with a trained policy."""
    config = SACConfig(hidden_sizes=(8,), start_steps=0, hold_probability=1.0, hold_steps=1_000)
    policy = build_policy(config, EnvSpec((3,), "float32", action_shape=(2,)), seed=0)
    observation = np.zeros((4, 3), np.float32)
    is_first = np.array([True, False, False, True])
    before = policy.act(policy_input(observation), 1).action
    after = policy.act(policy_input(observation, is_first), 1).action
    assert (before != after).all(axis=1).tolist() == is_first.tolist()


def test_bounded_critic_gradient_stops_at_its_bound() -> None:
    """At a bound of 1, errors -3, 0.5 and 40 pull with -1, 0.5 and 1; `td_error` itself is not bounded."""
    q = torch.tensor([[-3.0, 0.5, 40.0]] * 2).unsqueeze(-1)
    gradient, td_error = ScalarHead(huber_delta=1.0).gradient(q, torch.zeros(3, 1), torch.ones(3))
    torch.testing.assert_close(gradient.squeeze(-1), torch.tensor([[-1.0, 0.5, 1.0]] * 2) / 3)
    torch.testing.assert_close(td_error, torch.tensor([3.0, 0.5, 40.0]))
