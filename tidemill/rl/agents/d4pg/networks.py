"""The networks of D4PG, as its agent and its policy need them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tidemill.rl.agents.d4pg.config import D4PGConfig
from tidemill.rl.losses.categorical import categorical_target
from tidemill.rl.networks.deterministic import ActionCritic, DeterministicActor, behind_torso
from tidemill.types import EnvSpec

ACTOR_LAST_BOUND = 3e-3
"""Bound on the actor's last layer's first parameters, as in DDPG (Lillicrap et al. 2016, section 7)."""


def build_actor(config: D4PGConfig, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return the network from observations [B, ...] to actions [B, A]."""

    def actor(inputs: int) -> nn.Module:
        return DeterministicActor(inputs, config.actor_sizes, env_spec.action_size, rng, last_bound=ACTOR_LAST_BOUND)

    return behind_torso(config, env_spec, rng, actor)


def build_critic(config: D4PGConfig, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return the network from observations and actions to logits of the return's distribution, [B, num_atoms]."""

    def critic(inputs: int) -> nn.Module:
        sizes, actions, layer = config.critic_sizes, env_spec.action_size, config.action_layer
        return ActionCritic(inputs, actions, sizes, config.num_atoms, rng, action_layer=layer)

    return behind_torso(config, env_spec, rng, critic)


def logits_taken(critic: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the logits of the critic's distributions of a batch's actions, [B, num_atoms]."""
    logits: Tensor = critic(batch["observation"], batch["action"].flatten(1))
    return logits


@torch.no_grad()
def target_of(actor: nn.Module, critic: nn.Module, batch: Mapping[str, Tensor], support: Tensor) -> Tensor:
    """Return the targets for the distributions of a batch's actions, [B, num_atoms]."""
    next_observation = batch["bootstrap_observation"]
    probabilities = critic(next_observation, actor(next_observation)).softmax(dim=-1)
    return categorical_target(batch["n_step_return"], batch["bootstrap_discount"], probabilities, support)
