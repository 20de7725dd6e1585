"""The networks of DDPG, as its agent and its policy need them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tidemill.rl.agents.ddpg.config import DDPGConfig
from tidemill.rl.agents.ddpg.loss import td_target
from tidemill.rl.networks.deterministic import ActionCritic, DeterministicActor, behind_torso
from tidemill.types import EnvSpec

LAST_BOUND = 3e-3
"""Bound on the last layers' first parameters (Lillicrap et al. 2016, section 7)."""


def build_actor(config: DDPGConfig, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return the network from observations [B, ...] to actions [B, A]."""

    def actor(inputs: int) -> nn.Module:
        sizes, actions, activation = config.actor_sizes, env_spec.action_size, config.actor_activation
        return DeterministicActor(inputs, sizes, actions, rng, activation=activation, last_bound=LAST_BOUND)

    return behind_torso(config, env_spec, rng, actor)


def build_critic(config: DDPGConfig, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return the network from observations and actions to values [B, 1]."""

    def critic(inputs: int) -> nn.Module:
        sizes, actions, layer = config.critic_sizes, env_spec.action_size, config.action_layer
        return ActionCritic(inputs, actions, sizes, 1, rng, action_layer=layer, last_bound=LAST_BOUND)

    return behind_torso(config, env_spec, rng, critic)


def values_taken(critic: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the critic's values of a batch's actions, [B]."""
    q: Tensor = critic(batch["observation"], batch["action"].flatten(1))
    return q.squeeze(-1)


@torch.no_grad()
def target_of(actor: nn.Module, critic: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the targets for the values of a batch's actions, [B]."""
    next_observation = batch["bootstrap_observation"]
    bootstrap_q = critic(next_observation, actor(next_observation)).squeeze(-1)
    return td_target(batch["n_step_return"], batch["bootstrap_discount"], bootstrap_q)
