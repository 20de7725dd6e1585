"""Algorithms that learn from replay on observations and rewards of unit scale: against NumPy, and in acting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.batches import CONTINUOUS, IMAGE, SMALL_R2D2, VECTOR, policy_input, sampled_batch
from tests.support.naming import naming
from tidemill.config.load import load_config
from tidemill.errors import ConfigError
from tidemill.params.blob import half
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.policy_io import PolicyInputBuilder
from tidemill.rl.settings.deterministic import D4PGConfig, DDPGConfig, TD3Config
from tidemill.rl.settings.q_learning import DQNConfig, R2D2Config
from tidemill.rl.settings.registry import AgentConfig, extra_columns_of
from tidemill.rl.settings.soft_actor_critic import SACConfig, SACDiscreteConfig
from tidemill.types import EnvSpec, ObservationPart

SHIFT, SCALE = np.array([5_000.0, 0.0, -3.0], np.float32), np.array([0.5, 1e-3, 1_000.0], np.float32)
"""Of the three numbers of an observation."""
GAMMA, ITEMS = 0.9, 32
SIZES: dict[str, Any] = {"hidden_sizes": (16,)}
ACTOR_AND_CRITIC: dict[str, Any] = {"actor_sizes": (16,), "critic_sizes": (16, 16)}
CONFIGS: dict[str, tuple[Any, EnvSpec]] = {
    "dqn": (DQNConfig(**SIZES, n_step=2, gamma=GAMMA, target_update_period=2, dueling=False), VECTOR),
    "dqn_munchausen": (DQNConfig(**SIZES, double=False, munchausen_scale=0.9, gamma=GAMMA), VECTOR),
    "sac": (SACConfig(**SIZES, gamma=GAMMA, actor_ema_decay=0.5), CONTINUOUS),
    "sac_tqc": (SACConfig(**SIZES, gamma=GAMMA, critics=3, quantiles=5, network="mlp"), CONTINUOUS),
    "sac_discrete": (SACDiscreteConfig(**SIZES, gamma=GAMMA), VECTOR),
    "td3": (TD3Config(**SIZES, gamma=GAMMA), CONTINUOUS),
    "ddpg": (DDPGConfig(**ACTOR_AND_CRITIC, gamma=GAMMA), CONTINUOUS),
    "d4pg": (D4PGConfig(**ACTOR_AND_CRITIC, gamma=GAMMA, num_atoms=11, value_min=-5.0, value_max=5.0), CONTINUOUS),
    "r2d2": (R2D2Config(**SMALL_R2D2, gamma=GAMMA), VECTOR),
    "td3_lstm": (TD3Config(**SIZES, gamma=GAMMA, lstm_size=8, burn_in=2, unroll=4, period=2), CONTINUOUS),
    "sac_lstm": (SACConfig(**SIZES, gamma=GAMMA, lstm_size=8, burn_in=2, unroll=4, period=2), CONTINUOUS),
}
every_algorithm = pytest.mark.parametrize("config, spec", CONFIGS.values(), ids=CONFIGS.keys())


class Statistics:
    """What all values so far had for mean and standard deviation, each counted with its weight; in float64."""

    def __init__(self) -> None:
        self._values: list[NDArray[np.float64]] = []
        self._weights: list[NDArray[np.float64]] = []

    def count(self, values: Tensor, weight: Tensor) -> None:
        """Add values [N, ...] with weights [N]."""
        self._values.append(values.double().numpy())
        self._weights.append(weight.double().numpy())

    @property
    def mean_and_std(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of every element of a value."""
        values, weights = np.concatenate(self._values), np.concatenate(self._weights)
        mean = np.average(values, axis=0, weights=weights)
        variance = np.average((values - mean) ** 2, axis=0, weights=weights)
        return mean, np.sqrt(variance + 1e-8)


def normalized(config: Any) -> Any:  # noqa: ANN401 - settings of any algorithm
    """Return settings that normalize all that the algorithm can."""
    return replace(config, normalize_observations=True, normalize_rewards=config.algorithm != "r2d2")


def raw_batch(agent: Any, config: AgentConfig, spec: EnvSpec, number: int) -> dict[str, Tensor]:  # noqa: ANN401
    """Return a batch whose observations have very different scales."""
    batch = sampled_batch(agent, config, spec, ITEMS, torch.Generator().manual_seed(number))
    for name in ("observation", "bootstrap_observation"):
        if name in batch:
            batch[name] = batch[name] * torch.from_numpy(SCALE) + torch.from_numpy(SHIFT)
    return batch


def counted_observations(config: Any, batch: Mapping[str, Tensor], weight: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    """Return the observations of a batch that count, [N, 3], and their weights."""
    if "is_trained" not in batch:
        return batch["observation"], weight
    unroll = slice(config.burn_in, config.burn_in + config.unroll)
    return batch["observation"][:, unroll].flatten(0, 1), (batch["is_trained"] * weight[:, None]).flatten()


@every_algorithm
def test_updates_are_those_of_batches_that_numpy_normalized(config: Any, spec: EnvSpec) -> None:  # noqa: ANN401
    """Four updates of raw batches, and of a plain agent on batches whose statistics were computed apart from it.

    A batch is counted before it is learned from: by all its transitions so far, each time by its importance weight.
    """
    settings = normalized(config)
    agent, plain = build_agent(settings, spec, seed=1), build_agent(config, spec, seed=1)
    observations, returns = Statistics(), Statistics()
    for number in range(4):
        batch = raw_batch(agent, settings, spec, number)
        weight = torch.rand(ITEMS, generator=torch.Generator().manual_seed(number))
        observations.count(*counted_observations(config, batch, weight))
        mean, std = observations.mean_and_std
        prepared = dict(batch)
        for name in ("observation", "bootstrap_observation"):
            if name in batch:
                scaled = np.clip((batch[name].double().numpy() - mean) / std, -10, 10)
                prepared[name] = torch.from_numpy(scaled.astype(np.float32))
        if settings.normalize_rewards:
            each = counted_observations(config, batch, weight)[1]
            returns.count((batch["reward"] + GAMMA * batch["earlier_return"]).flatten(), each)
            by = float(returns.mean_and_std[1])
            prepared["n_step_return"] = (batch["n_step_return"] / by).clamp(-10, 10)
        found, expected = agent.update(batch, weight), plain.update(prepared, weight)
        torch.testing.assert_close(found.priority, expected.priority, rtol=2e-2, atol=2e-3)
    moments = agent.state_dict()["normalizer"]
    np.testing.assert_allclose((moments["observations.mean"].numpy() - mean) / std, 0.0, atol=1e-3)
    np.testing.assert_allclose((moments["observations.variance"] + 1e-8).sqrt(), std, rtol=1e-4)
    if settings.normalize_rewards:
        np.testing.assert_allclose(moments["returns.variance"].sqrt(), by, rtol=1e-5)
    theirs = plain.state_dict()
    for network, parameters in theirs.items():
        if isinstance(parameters, dict) and "optimizer" not in network:
            own = {name.replace("network.", ""): value for name, value in agent.state_dict()[network].items()}
            for name, value in parameters.items():
                torch.testing.assert_close(own[name.replace("network.", "")], value, rtol=2e-2, atol=1e-3)


@every_algorithm
def test_every_network_has_the_statistics_and_a_version_of_the_parameters_too(config: Any, spec: EnvSpec) -> None:  # noqa: ANN401
    """Targets and averages see what the online network sees, and so does a policy that loads the version."""
    settings = normalized(config)
    agent = build_agent(settings, spec, seed=1)
    for number in range(3):
        agent.update(raw_batch(agent, settings, spec, number), torch.ones(ITEMS))
    state = agent.state_dict()
    mean = state["normalizer"]["observations.mean"]
    found = [
        value
        for network, values in state.items()
        if isinstance(values, dict) and "optimizer" not in network
        for name, value in values.items()
        if name.endswith("standardization.mean")
    ]
    assert len(found) >= 2
    published = agent.policy_state()
    found += [value for name, value in published.items() if name.endswith("standardization.mean")]
    assert all(torch.equal(value, mean) for value in found)
    from_rewards = config.algorithm in ("dqn", "td3", "ddpg", "d4pg") and not getattr(config, "lstm_size", 0)
    assert ("reward_std" in published) == from_rewards


@every_algorithm
def test_policy_acts_by_the_version_in_both_precisions(config: Any, spec: EnvSpec) -> None:  # noqa: ANN401
    """As a plain policy does on observations that NumPy normalized; the mean is not rounded to float16.

    A mean of 5,000 with a deviation of 0.5, which float16 would miss by up to four deviations.
    """
    settings = normalized(config)
    agent = build_agent(settings, spec, seed=1)
    for number in range(3):
        agent.update(raw_batch(agent, settings, spec, number), torch.ones(ITEMS))
    published = {name: value.numpy() for name, value in agent.policy_state().items()}
    rounded = half(published)
    assert rounded is not None
    moments = agent.state_dict()["normalizer"]
    rng = np.random.default_rng(3)
    seen = (rng.normal(size=(64, 3)).astype(np.float32) * SCALE + SHIFT).astype(np.float32)
    std = np.sqrt(moments["observations.variance"].numpy() + 1e-8)
    near = np.clip((seen.astype(np.float64) - moments["observations.mean"].numpy()) / std, -10, 10).astype(np.float32)
    plain = build_policy(config, spec)
    plain.load(
        {
            name.replace("network.", "" if plain.recurrent_state_size == 0 else "network."): torch.from_numpy(value)
            for name, value in published.items()
            if "standardization" not in name and name != "reward_std"
        }
    )
    before = np.zeros((64, *spec.action_shape), spec.action_dtype)
    seen_by = replace(policy_input(seen, recurrent_state_size=plain.recurrent_state_size), last_action=before)
    expected = plain.act(replace(seen_by, observation=near), evaluation=True).action
    for encoded in (published, rounded):
        policy = build_policy(settings, spec)
        policy.load({name: torch.from_numpy(value.astype(np.float64)) for name, value in encoded.items()})
        found = policy.act(seen_by, evaluation=True).action
        if spec.is_discrete:
            assert np.mean(found == expected) > 0.95
        else:
            np.testing.assert_allclose(found, expected, atol=5e-3)


@pytest.mark.parametrize("name", ["dqn", "dqn_munchausen", "ddpg", "d4pg"])
def test_initial_priority_is_by_the_scale_of_the_version(name: str) -> None:
    """It is what the update gives the item: rewards are divided by the deviation that came with the parameters."""
    config, spec = CONFIGS[name]
    settings = replace(normalized(config), n_step=1)
    agent = build_agent(settings, spec, seed=1)
    for number in range(3):
        agent.update(raw_batch(agent, settings, spec, number), torch.ones(ITEMS))
    agent.load_state_dict(_with_equal_targets(agent.state_dict()))
    policy = build_policy(settings, spec, slot=ActorSlot(0, 8, 1))
    policy.load(agent.policy_state())
    rng = np.random.default_rng(5)
    seen = [(rng.normal(size=(8, 3)) * SCALE + SHIFT).astype(np.float32) for _ in range(2)]
    outputs = [policy.act(policy_input(each), 10**6) for each in seen]
    steps = {
        name: np.stack([output.priority_inputs[name] for output in outputs]) for name in outputs[0].priority_inputs
    }
    flags = np.zeros((2, 8), bool)
    reward = rng.normal(size=(2, 8)).astype(np.float32)
    steps |= {"reward": reward, "terminated": flags, "truncated": flags, "is_reset_step": flags}
    found = policy.initial_priority(steps)
    batch = {
        "observation": torch.from_numpy(seen[0]),
        "bootstrap_observation": torch.from_numpy(seen[1]),
        "action": torch.from_numpy(np.ascontiguousarray(outputs[0].action)),
        "n_step_return": torch.from_numpy(reward[0]),
        "bootstrap_discount": torch.full((8,), GAMMA),
        "reward": torch.from_numpy(reward[0]),
        "earlier_return": torch.zeros(8),
    }
    none = torch.zeros(8)  # counts nothing, so that the update sees what the policy saw
    np.testing.assert_allclose(found, agent.update(batch, none).priority.numpy(), rtol=1e-3, atol=1e-4)


def _with_equal_targets(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state whose targets are the networks that they follow."""
    of = {"target": "online", "target_actor": "actor", "target_critic": "critic"}
    return {name: state[of[name]] if name in of else value for name, value in state.items()}


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "r2d2"])
def test_actor_stores_the_discounted_rewards_before_each_step(name: str) -> None:
    """By hand, through the builder of inputs that actors use: two environments, the second begins again."""
    config, spec = CONFIGS[name]
    settings = replace(config, gamma=0.5, normalize_rewards=True)
    assert [column.name for column in extra_columns_of(settings, spec)] == ["earlier_return"]
    policy = build_policy(settings, spec, slot=ActorSlot(0, 2, 1))
    builder = PolicyInputBuilder(2, spec, policy.recurrent_state_size)
    rewards = np.array([[7, 7], [1, 2], [3, 4], [5, 6]], np.float32)
    is_first = np.array([[True, True], [False, False], [False, True], [False, False]])
    found = []
    for step, (reward, first) in enumerate(zip(rewards, is_first, strict=True)):
        seen = builder.build(np.zeros((2, 3), np.float32), first, reward)
        output = policy.act(seen, 10**6 * (step % 2))  # random actions as well
        builder.record(output)
        found.append(output.extras["earlier_return"])
    assert np.stack(found).tolist() == [[0, 0], [1, 2], [3.5, 0], [6.75, 6]]


def test_what_cannot_be_normalized_is_refused_in_one_line() -> None:
    """Images, parts that are images, relabelled goals, and values that are squashed."""
    with pytest.raises(ConfigError, match=naming("network 'nature' mlp normalize_observations")):
        SACConfig(network="nature", normalize_observations=True)
    with pytest.raises(ConfigError, match=naming("network 'nature' mlp")):
        build_agent(DQNConfig(normalize_observations=True), IMAGE)
    camera = ObservationPart("camera", "uint8", (36, 40))
    parts = EnvSpec((1452,), "uint8", num_actions=4, observation_parts=(ObservationPart("v", "float32", (3,)), camera))
    with pytest.raises(ConfigError, match=naming("normalize_observations True false (camera)")):
        build_agent(DQNConfig(normalize_observations=True), parts)
    with pytest.raises(ConfigError, match=naming("normalize_rewards True false r2d2")):
        R2D2Config(normalize_rewards=True)
    hindsight = {
        "agent": {"algorithm": "dqn", "n_step": 1, "normalize_rewards": True},
        "table": {"hindsight": 0.8},
    }
    with pytest.raises(ConfigError, match=naming("normalize_rewards True false table.hindsight")):
        load_config(hindsight)


def test_vectors_of_several_parts_are_normalized() -> None:
    """Goals and what is observed beside them have a scale each."""
    parts = (ObservationPart("goal", "float32", (1,)), ObservationPart("seen", "float32", (2,)))
    spec = EnvSpec((12,), "uint8", num_actions=4, observation_parts=parts)
    agent = build_agent(DQNConfig(hidden_sizes=(8,), normalize_observations=True), spec)
    rng = np.random.default_rng(1)
    numbers = (rng.normal(size=(ITEMS, 3)) * SCALE + SHIFT).astype(np.float32)
    packed = torch.from_numpy(numbers.view(np.uint8).reshape(ITEMS, 12))
    batch = {
        "observation": packed,
        "bootstrap_observation": packed,
        "action": torch.zeros(ITEMS, dtype=torch.int64),
        "n_step_return": torch.zeros(ITEMS),
        "bootstrap_discount": torch.zeros(ITEMS),
    }
    agent.update(batch, torch.ones(ITEMS))
    found = agent.policy_state()
    np.testing.assert_allclose(found["torso.standardization.mean"], numbers.mean(axis=0, dtype=np.float64), rtol=1e-5)
    np.testing.assert_allclose(found["torso.standardization.std"], numbers.std(axis=0, dtype=np.float64), rtol=1e-2)
