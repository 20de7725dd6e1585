"""The networks of DDPG, as its agent and its policy need them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tidemill.rl.agents.ddpg.config import DDPGConfig
from tidemill.rl.agents.ddpg.loss import td_target
from tidemill.rl.networks.deterministic import ActionCritic, DeterministicActor
from tidemill.rl.networks.linear import flat
from tidemill.types import EnvSpec

LAST_BOUND = 3e-3
"""Bound on the last layers' first parameters (Lillicrap et al. 2016, section 7)."""


def build_actor(config: DDPGConfig, env_spec: EnvSpec, rng: torch.Generator) -> DeterministicActor:
    """Return the network from observations [B, O] to actions [B, A]."""
    return DeterministicActor(
        env_spec.observation_size,
        config.actor_sizes,
        env_spec.action_size,
        rng,
        activation=config.actor_activation,
        last_bound=LAST_BOUND,
    )


def build_critic(config: DDPGConfig, env_spec: EnvSpec, rng: torch.Generator) -> ActionCritic:
    """Return the network from observations and actions to values [B, 1]."""
    return ActionCritic(
        env_spec.observation_size,
        env_spec.action_size,
        config.critic_sizes,
        1,
        rng,
        action_layer=config.action_layer,
        last_bound=LAST_BOUND,
    )


def values_taken(critic: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the critic's values of a batch's actions, [B]."""
    q: Tensor = critic(flat(batch["observation"]), batch["action"].flatten(1))
    return q.squeeze(-1)


@torch.no_grad()
def target_of(actor: nn.Module, critic: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return what these networks say that the values of a batch's actions should be, [B]."""
    next_observation = flat(batch["bootstrap_observation"])
    bootstrap_q = critic(next_observation, actor(next_observation)).squeeze(-1)
    return td_target(batch["n_step_return"], batch["bootstrap_discount"], bootstrap_q)
