"""The networks of D4PG, as its agent and its policy need them."""

from __future__ import annotations

import torch

from tidemill.rl.agents.d4pg.config import D4PGConfig
from tidemill.rl.networks.deterministic import ActionCritic, DeterministicActor
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
