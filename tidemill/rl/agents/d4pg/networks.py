"""The networks of D4PG, as its agent and its policy need them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tidemill.rl.agents.d4pg.config import D4PGConfig
from tidemill.rl.losses.categorical import categorical_target
from tidemill.rl.networks.deterministic import ActionCritic, DeterministicActor
from tidemill.rl.networks.linear import flat
from tidemill.types import EnvSpec

ACTOR_LAST_BOUND = 3e-3
"""Bound on the actor's last layer's first parameters, as in DDPG (Lillicrap et al. 2016, section 7)."""


def build_actor(config: D4PGConfig, env_spec: EnvSpec, rng: torch.Generator) -> DeterministicActor:
    """Return the network from observations [B, O] to actions [B, A]."""
    observation_size, action_size = env_spec.observation_size, env_spec.action_size
    return DeterministicActor(observation_size, config.actor_sizes, action_size, rng, last_bound=ACTOR_LAST_BOUND)


def build_critic(config: D4PGConfig, env_spec: EnvSpec, rng: torch.Generator) -> ActionCritic:
    """Return the network from observations and actions to logits of the return's distribution, [B, num_atoms]."""
    return ActionCritic(
        env_spec.observation_size,
        env_spec.action_size,
        config.critic_sizes,
        config.num_atoms,
        rng,
        action_layer=config.action_layer,
    )


def logits_taken(critic: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the logits of the critic's distributions of a batch's actions, [B, num_atoms]."""
    logits: Tensor = critic(flat(batch["observation"]), batch["action"].flatten(1))
    return logits


@torch.no_grad()
def target_of(actor: nn.Module, critic: nn.Module, batch: Mapping[str, Tensor], support: Tensor) -> Tensor:
    """Return what these networks say that the distributions of a batch's actions should be, [B, num_atoms]."""
    next_observation = flat(batch["bootstrap_observation"])
    probabilities = critic(next_observation, actor(next_observation)).softmax(dim=-1)
    return categorical_target(batch["n_step_return"], batch["bootstrap_discount"], probabilities, support)
