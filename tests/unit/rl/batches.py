"""Agents and batches that the tests of every algorithm share."""

from __future__ import annotations

import torch
from torch import Tensor

from tidemill.rl.agents.config import AgentConfig
from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.agents.sac.config import SACConfig
from tidemill.types import EnvSpec

VECTOR = EnvSpec((3,), "float32", num_actions=4)
CONTINUOUS = EnvSpec((3,), "float32", action_shape=(2,))
IMAGE = EnvSpec((36, 40), "uint8", frame_stack=4, num_actions=4)

CASES: dict[str, tuple[AgentConfig, EnvSpec]] = {
    "dqn": (DQNConfig(network="mlp", hidden_sizes=(16,), target_every=100), VECTOR),
    "dqn_soft_target": (DQNConfig(network="mlp", hidden_sizes=(16,), target_every=0, loss="mse", double=False), VECTOR),
    "dqn_image": (DQNConfig(network="nature_group_norm", hidden_sizes=(16,), dueling=False, target_every=3), IMAGE),
    "sac": (SACConfig(hidden_sizes=(16, 16)), CONTINUOUS),
    "sac_all_options": (
        SACConfig(
            hidden_sizes=(16,),
            critic_layer_norm=True,
            temperature="fixed",
            initial_temperature=0.1,
            actor_every=2,
            policy_average=0.9,
            learning_rate_decay_updates=1_000,
        ),
        CONTINUOUS,
    ),
}
"""Settings and environment by name: every network and option takes part in one."""


def random_batch(env_spec: EnvSpec, size: int, rng: torch.Generator) -> dict[str, Tensor]:
    """Return a batch of made-up transitions as `Agent.update` takes it."""
    return {
        "observation": _observations(env_spec, size, rng),
        "action": _actions(env_spec, size, rng),
        "n_step_return": torch.randn(size, generator=rng),
        "bootstrap_discount": torch.rand(size, generator=rng),
        "bootstrap_observation": _observations(env_spec, size, rng),
    }


def _observations(env_spec: EnvSpec, size: int, rng: torch.Generator) -> Tensor:
    stack = (env_spec.frame_stack,) if env_spec.frame_stack > 1 else ()
    shape = (size, *stack, *env_spec.observation_shape)
    if env_spec.observation_dtype == "uint8":
        return torch.randint(256, shape, dtype=torch.uint8, generator=rng)
    return torch.randn(shape, generator=rng)


def _actions(env_spec: EnvSpec, size: int, rng: torch.Generator) -> Tensor:
    if env_spec.is_discrete:
        return torch.randint(env_spec.num_actions, (size,), generator=rng)
    return torch.rand((size, *env_spec.action_shape), generator=rng) * 2 - 1
