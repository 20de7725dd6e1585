"""The networks of TD3, as its agent and its policy need them."""

from __future__ import annotations

import torch

from tidemill.rl.agents.td3.config import TD3Config
from tidemill.rl.networks.batched_mlp import BatchedMLP
from tidemill.rl.networks.deterministic import DeterministicActor
from tidemill.types import EnvSpec


def build_actor(config: TD3Config, env_spec: EnvSpec, rng: torch.Generator) -> DeterministicActor:
    """Return the network from observations [B, O] to actions [B, A]."""
    return DeterministicActor(env_spec.observation_size, config.hidden_sizes, env_spec.action_size, rng)


def build_critic(config: TD3Config, env_spec: EnvSpec, rng: torch.Generator) -> BatchedMLP:
    """Return two networks from observations and actions side by side, [B, O + A], to values [2, B, 1]."""
    return BatchedMLP(2, env_spec.observation_size + env_spec.action_size, config.hidden_sizes, 1, rng)
