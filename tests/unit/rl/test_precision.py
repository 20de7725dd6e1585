"""A network that acts in bfloat16 acts as the float32 network does."""

from __future__ import annotations

import numpy as np
import torch

from tests.unit.rl.batches import percept
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.exploration import ActorPlace
from tidemill.types import EnvSpec

_SPEC = EnvSpec((84, 84), "uint8", frame_stack=4, num_actions=6)


def test_bfloat16_greedy_actions_agree_wherever_float32_is_not_undecided() -> None:
    """Over random images the actions differ only where float32's two best Q lie within bfloat16's error."""
    config = DQNConfig(network="nature", hidden_sizes=(512,), dueling=True)
    state = build_agent(config, _SPEC, seed=3).policy_state()
    observation = np.random.default_rng(0).integers(0, 256, (64, 4, 84, 84), dtype=np.uint8)
    observation[:, :, 20:40, 20:60] = 0  # not noise alone: a place that is the same in all
    full = build_policy(config, _SPEC, precision="float32", place=ActorPlace(num_envs=64))
    half = build_policy(config, _SPEC, precision="bfloat16", place=ActorPlace(num_envs=64))
    for policy in (full, half):
        policy.load(state)
    exact, near = full._q(observation), half._q(observation)  # type: ignore[attr-defined]
    assert near.dtype == np.float32
    assert not np.array_equal(exact, near)
    best = np.sort(exact, axis=1)
    error = np.abs(exact - near).max()
    assert error < 0.02 * np.abs(exact).max()
    decided = best[:, -1] - best[:, -2] > 2 * error
    assert decided.mean() > 0.5
    actions = [policy.greedy(percept(observation)).action[decided] for policy in (full, half)]
    assert np.array_equal(actions[0], actions[1])


def test_auto_precision_loads_and_acts() -> None:
    """Whatever format the timing picks, a policy takes float16 parameters and chooses actions."""
    config = DQNConfig(network="nature", hidden_sizes=(64,))
    policy = build_policy(config, _SPEC, precision="auto", place=ActorPlace(num_envs=2))
    policy.load({name: value.to(torch.float16) for name, value in build_agent(config, _SPEC).policy_state().items()})
    assert policy.greedy(percept(np.zeros((2, 4, 84, 84), dtype=np.uint8))).action.shape == (2,)
