"""Every continuous agent finds the best action of a bandit, from the rows an actor would have written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.batches import policy_input
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.settings.deterministic import D4PGConfig, DDPGConfig, TD3Config
from tidemill.rl.settings.registry import AgentConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec

BANDIT = EnvSpec((2,), "float32", action_shape=(2,))
CASES: dict[str, AgentConfig] = {
    "ddpg": DDPGConfig(actor_sizes=(32,), critic_sizes=(64, 64), actor_learning_rate=3e-3, critic_learning_rate=3e-3),
    "ddpg_n_step": DDPGConfig(
        actor_sizes=(32,),
        actor_activation="tanh",
        critic_sizes=(32, 32),
        action_layer=0,
        n_step=3,
        actor_learning_rate=3e-3,
        critic_learning_rate=3e-3,
    ),
    "td3": TD3Config(hidden_sizes=(32, 32), actor_learning_rate=3e-3, critic_learning_rate=3e-3),
    "d4pg": D4PGConfig(
        actor_sizes=(32,),
        critic_sizes=(32, 32),
        value_min=-4.0,
        value_max=0.5,
        actor_learning_rate=3e-3,
        critic_learning_rate=3e-3,
    ),
    "sac": SACConfig(hidden_sizes=(32,), learning_rate=3e-3, temperature="fixed", initial_temperature=1e-3),
    "sac_tqc": SACConfig(
        hidden_sizes=(32,), learning_rate=3e-3, temperature="fixed", initial_temperature=1e-3, quantiles=9
    ),
    "sac_crossq": SACConfig(
        hidden_sizes=(32,),
        learning_rate=3e-3,
        adam_beta1=0.5,
        temperature="fixed",
        initial_temperature=1e-3,
        crossq=True,
        crossq_warmup_updates=300,
    ),
}
SLOW = ("d4pg", "sac_crossq")
"""One spreads its values over atoms first, the other begins with a warm-up."""


def best_action(observation: np.ndarray) -> np.ndarray:
    """Return the action of largest reward: half the observation, its signs exchanged."""
    return -0.5 * observation[:, ::-1]


def rows(count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the rows of a stream of one-step episodes with random observations and actions."""
    observation = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    action = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    reward = -np.square(action - best_action(observation)).sum(axis=1)
    return {
        "observation": observation,
        "action": action,
        "reward": reward.astype(np.float32),
        "terminated": np.ones(count, np.bool_),
        "truncated": np.zeros(count, np.bool_),
        "is_first": np.ones(count, np.bool_),
    }


@pytest.mark.parametrize("name", CASES)
def test_actor_finds_the_best_action_of_every_observation(name: str) -> None:
    """Within 1,000 updates, items of uneven weights, the actor comes from .25 to less than .1 off in the mean."""
    config = CASES[name]
    agent, policy = build_agent(config, BANDIT, seed=0), build_policy(config, BANDIT, seed=0)
    rng = np.random.default_rng(0)
    columns = rows(20_000, rng)
    for _ in range(1_000 if name in SLOW else 600):
        start = rng.integers(0, 19_000, 64)
        batch = agent.decode(columns, start[:, None] + np.arange(agent.window.length))
        weight = torch.from_numpy(rng.uniform(0.5, 1.0, 64).astype(np.float32))
        agent.update({name: torch.from_numpy(value) for name, value in batch.items()}, weight)
    seen = rng.uniform(-1, 1, (500, 2)).astype(np.float32)
    policy.load(agent.policy_state())
    assert np.abs(policy.act(policy_input(seen), evaluation=True).action - best_action(seen)).mean() < 0.1
