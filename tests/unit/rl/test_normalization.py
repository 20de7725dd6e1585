"""Observations and rewards of unit scale: what is counted, and when the network sees it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.support.batches import policy_input
from tests.support.naming import naming
from tests.unit.rl.test_on_policy import CONTINUOUS, CPU, DISCRETE, GAMMA, STEPS, STREAMS, rollout
from tidemill.arrays import Array
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.impala import IMPALAAgent
from tidemill.rl.agents.on_policy import RolloutNormalizer
from tidemill.rl.agents.ppo import PPOAgent
from tidemill.rl.normalization import CLIP, RunningMoments, Standardization, discounted_sums
from tidemill.rl.process_group import SINGLE_PROCESS
from tidemill.rl.settings.on_policy import IMPALAConfig, PPOConfig

BOTH = {
    "hidden_sizes": (8,),
    "unroll": STEPS,
    "gamma": GAMMA,
    "normalize_observations": True,
    "normalize_rewards": True,
}
ONES = torch.ones(STREAMS)


class _OneOfTwo:
    """A rank of two, which is told what the other one has."""

    index, size = 0, 2

    def __init__(self, *others: list[Tensor]) -> None:
        self._others = list(others)

    def mean(self, gradients: Any) -> list[Tensor]:  # noqa: ANN401 - a sequence of tensors
        """Return the mean of this rank's and the other's next tensors."""
        return [(mine + other) / 2 for mine, other in zip(gradients, self._others.pop(0), strict=True)]

    def add_up(self, flat: Tensor) -> None:
        """Add the other rank's next tensors."""
        flat += torch.cat([other.reshape(-1) for other in self._others.pop(0)])


@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    shift=st.sampled_from((0.0, 1e3)),
    scale=st.sampled_from((0.1, 1.0, 1e3)),
    seed=st.integers(0, 99),
)
def test_moments_are_those_of_all_that_counted(sizes: list[int], shift: float, scale: float, seed: int) -> None:
    """In whatever portions it came, and whatever else came beside it."""
    rng, moments, counted = np.random.default_rng(seed), RunningMoments(3), []
    for size in sizes:
        values, mask = rng.normal(shift, scale, (size, 3)).astype(np.float32), rng.random(size) < 0.7
        moments.add(torch.from_numpy(values), torch.from_numpy(mask).float(), SINGLE_PROCESS)
        counted.append(values[mask])
    together = np.concatenate(counted).astype(np.float64)
    assert int(moments.count) == len(together)
    expected = (together.mean(axis=0), together.var(axis=0)) if len(together) else (np.zeros(3), np.ones(3))
    np.testing.assert_allclose(moments.mean, expected[0], rtol=1e-5, atol=1e-4 * scale)
    np.testing.assert_allclose(moments.variance, expected[1], rtol=2e-3, atol=2e-3 * scale**2)


def test_ranks_count_together() -> None:
    """Two ranks with 2 and 1 values have what one would have of all three: mean 4, variance 14/3 + ... by hand."""
    mine, other = torch.tensor([1.0, 3.0]), torch.tensor([8.0])
    mean = (1 + 3 + 8) / 3
    others = [torch.tensor(1.0), other.sum()], [(other - mean).square().sum()]
    moments = RunningMoments()
    moments.add(mine, torch.ones(2), _OneOfTwo(*others))
    assert float(moments.count) == 3.0
    assert float(moments.mean) == pytest.approx(4.0)
    assert float(moments.variance) == pytest.approx((9 + 1 + 16) / 3)


def test_discounted_sums_begin_with_an_episode() -> None:
    """By hand: 1, 2 + .5 * 1, and after the end of the episode 4 alone."""
    reward = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    continues = torch.tensor([[True], [False], [True], [True]])
    for earlier, expected in ((0.0, [1.0, 2.5, 4.0, 10.0]), (8.0, [5.0, 4.5, 4.0, 10.0])):
        assert discounted_sums(reward, continues, torch.tensor([earlier]), 0.5).flatten().tolist() == expected


@pytest.mark.parametrize("config_class", [PPOConfig, IMPALAConfig])
def test_actor_stores_the_sum_of_the_episode_before_each_step(config_class: Any) -> None:  # noqa: ANN401
    """By hand: two environments, of which the second begins an episode with the third step."""
    policy = build_policy(config_class(hidden_sizes=(8,), gamma=0.5, normalize_rewards=True), DISCRETE)
    rewards = np.array([[7, 7], [1, 2], [3, 4], [5, 6]], np.float32)  # with the observation; the first mean nothing
    is_first = np.array([[True, True], [False, False], [False, True], [False, False]])
    found: list[Array] = []
    extras: dict[str, Array] = {}
    for reward, first in zip(rewards, is_first, strict=True):
        seen = replace(policy_input(np.zeros((2, 3), np.float32)), last_extras=extras)
        extras = policy.act(replace(seen, last_reward=reward, is_first=first)).extras
        found.append(extras["earlier_return"])
    assert np.stack(found).tolist() == [[0, 0], [1, 2], [3.5, 0], [6.75, 6]]
    assert found[0].dtype == np.float32


def test_sums_of_items_are_those_of_the_stream() -> None:
    """However it is cut: the second item begins with what the actor had added up."""
    rng = np.random.default_rng(3)
    reward = torch.from_numpy(rng.normal(size=(12, 4)).astype(np.float32))
    continues = torch.from_numpy(rng.random((12, 4)) < 0.8)
    whole = discounted_sums(reward, continues, torch.zeros(4), 0.9)
    for cut in range(1, 12):
        earlier = whole[cut - 1] * continues[cut - 1]
        rest = discounted_sums(reward[cut:], continues[cut:], earlier, 0.9)
        torch.testing.assert_close(rest, whole[cut:])


def test_features_are_standardized_within_a_bound() -> None:
    """(x - 2) / 4, and no farther than ten standard deviations from the mean."""
    layer = Standardization(1)
    layer.mean.fill_(2.0)
    layer.std.fill_(4.0)
    assert layer(torch.tensor([[2.0], [6.0], [-1e6]])).flatten().tolist() == [0.0, 1.0, -CLIP]


@pytest.mark.parametrize("config_class, agent_class", [(PPOConfig, PPOAgent), (IMPALAConfig, IMPALAAgent)])
def test_network_sees_what_it_acted_by_until_the_update_is_over(config_class: Any, agent_class: Any) -> None:  # noqa: ANN401
    """The first update learns from observations as they are; the version after it has their mean and their scale."""
    agent, batch = agent_class(config_class(**BOTH), CONTINUOUS, CPU, seed=1), rollout(CONTINUOUS)
    before = agent.policy_state()
    assert before["standardization.mean"].tolist() == [0.0] * 3
    agent.update(batch, ONES)
    seen = batch["observation"][:, :-1][batch["is_trained"]].double()
    after = agent.policy_state()
    torch.testing.assert_close(after["standardization.mean"].double(), seen.mean(dim=0), rtol=1e-5, atol=1e-6)
    std = seen.std(dim=0, correction=0)
    torch.testing.assert_close(after["standardization.std"].double(), std, rtol=1e-5, atol=1e-6)


def test_an_unchanged_policy_has_the_ratio_one() -> None:
    """What actors drew by a version has the log-probability that the learner finds before its next update."""
    config = PPOConfig(**BOTH, epochs=1, minibatches=1)  # type: ignore[arg-type]
    agent, batch = PPOAgent(config, DISCRETE, CPU, seed=1), rollout(DISCRETE)
    agent.update(batch, ONES)
    policy = build_policy(config, DISCRETE)
    policy.load(agent.policy_state())
    for step in range(STEPS):
        observation = batch["observation"][:, step].numpy()
        acted = policy.act(policy_input(observation))
        batch["action"][:, step] = torch.from_numpy(acted.action)
        batch["log_prob"][:, step] = torch.from_numpy(acted.extras["log_prob"])
    loss = agent.loss(agent.samples(batch, ONES))[1]
    assert float(loss["kl"]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("config_class, agent_class", [(PPOConfig, PPOAgent), (IMPALAConfig, IMPALAAgent)])
def test_the_unit_of_rewards_does_not_matter(config_class: Any, agent_class: Any) -> None:  # noqa: ANN401
    """A thousand times as much teaches the same; without normalization it does not."""
    for normalized in (True, False):
        found = []
        for unit in (1.0, 1000.0):
            config = config_class(**BOTH | {"normalize_rewards": normalized})
            agent, batch = agent_class(config, CONTINUOUS, CPU, seed=1), rollout(CONTINUOUS)
            for _ in range(2):
                agent.update(batch | {"reward": unit * batch["reward"]}, ONES)
            found.append(torch.cat([value.flatten() for value in agent.policy_state().values()]))
        assert torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-5) is normalized


def test_scaled_rewards_are_by_the_deviation_of_the_returns() -> None:
    """One step alone, by hand: the rewards' own standard deviation."""
    config = PPOConfig(**BOTH | {"gamma": 0.0})  # type: ignore[arg-type]
    agent, batch = PPOAgent(config, DISCRETE, CPU, seed=1), rollout(DISCRETE)
    batch |= {"discount": torch.zeros(STREAMS, STEPS)}
    agent.update(batch, ONES)
    std = batch["reward"][batch["is_trained"]].std(correction=0)
    value = agent.network.values(batch["observation"][:, :-1].transpose(0, 1).flatten(0, 1))
    found = agent.samples(batch, ONES).target.detach()
    assert value.shape == found.shape
    torch.testing.assert_close(found, (batch["reward"].T / std).flatten(), rtol=1e-4, atol=1e-5)


def test_images_are_not_counted() -> None:
    """Their torsos scale them by what a byte can be."""
    with pytest.raises(ConfigError, match=naming("network 'nature' mlp normalize_observations")):
        PPOConfig(network="nature", normalize_observations=True)


def test_returns_of_a_rollout_leave_out_the_episode_whose_last_observation_it_begins_with() -> None:
    """Rewards of 1 and gamma 1/2: the first row is not a step of the next episode, whose sums are 1 and 1.5."""
    rollout: Any = SimpleNamespace(
        reward=torch.ones(3, 1),
        is_trained=torch.tensor([[False], [True], [True]]),
        continues=torch.ones((3, 1), dtype=torch.bool),
        earlier_return=torch.tensor([[1.875], [0.0], [1.0], [1.5]]),
    )
    normalizer: Any = SimpleNamespace(returns=Mock(), _gamma=0.5)
    RolloutNormalizer.before_update(normalizer, rollout, torch.ones(1), SINGLE_PROCESS)
    sums, weight, _ = normalizer.returns.add.call_args.args
    assert sums[weight > 0].tolist() == [1.0, 1.5]
