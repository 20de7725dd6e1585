"""The networks of TD3, as its agent and its policy need them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tidemill.rl.agents.td3.config import TD3Config
from tidemill.rl.agents.td3.loss import clipped_double_q_target
from tidemill.rl.networks.deterministic import DeterministicActor, behind_torso
from tidemill.rl.networks.ensemble_mlp import EnsembleMLP
from tidemill.types import EnvSpec


def build_actor(config: TD3Config, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return the network from observations [B, ...] to actions [B, A]."""

    def actor(inputs: int) -> nn.Module:
        return DeterministicActor(inputs, config.hidden_sizes, env_spec.action_size, rng)

    return behind_torso(config, env_spec, rng, actor)


def build_critic(config: TD3Config, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return two networks, behind one torso, from observations [B, ...] and actions [B, A] to values [2, B, 1]."""

    def critics(inputs: int) -> nn.Module:
        return EnsembleMLP(2, inputs + env_spec.action_size, config.hidden_sizes, 1, rng)

    return behind_torso(config, env_spec, rng, critics)


def values(critic: nn.Module, observation: Tensor, action: Tensor) -> Tensor:
    """Return both critics' values, [2, B]."""
    q: Tensor = critic(observation, action)
    return q.squeeze(-1)


@torch.no_grad()
def target_of(critic: nn.Module, next_observation: Tensor, action: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Return what the values of a batch's actions should be, [B], if `action` is taken where they lead to."""
    bootstrap_q = values(critic, next_observation, action)
    return clipped_double_q_target(batch["n_step_return"], batch["bootstrap_discount"], bootstrap_q)
