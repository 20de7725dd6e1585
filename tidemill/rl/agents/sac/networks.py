"""The networks of SAC, as its agent and its policy both need them."""

from __future__ import annotations

import torch

from tidemill.rl.agents.sac.config import SACConfig
from tidemill.rl.networks.ensemble_mlp import EnsembleMLP
from tidemill.types import EnvSpec


def build_actor(config: SACConfig, env_spec: EnvSpec, rng: torch.Generator) -> EnsembleMLP:
    """Return one network from observations [B, O] to mean and log standard deviation, [1, B, 2 A]."""
    outputs = 2 * env_spec.action_size
    return EnsembleMLP(1, env_spec.observation_size, config.hidden_sizes, outputs, rng).requires_grad_(False)


def build_critic(config: SACConfig, env_spec: EnvSpec, rng: torch.Generator) -> EnsembleMLP:
    """Return two networks from observations and actions side by side, [B, O + A], to values [2, B, 1]."""
    inputs = env_spec.observation_size + env_spec.action_size
    norm = config.critic_layer_norm
    return EnsembleMLP(2, inputs, config.hidden_sizes, 1, rng, layer_norm=norm).requires_grad_(False)
