"""DDPG's acting side."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tidemill.rl.agents.ddpg.config import DDPGConfig
from tidemill.rl.agents.ddpg.networks import build_actor, build_critic, target_of, values_taken
from tidemill.rl.agents.deterministic_policy import DeterministicPolicy
from tidemill.rl.agents.interface import PolicyContext
from tidemill.types import EnvSpec


def build(config: DDPGConfig, env_spec: EnvSpec, context: PolicyContext) -> DeterministicPolicy:
    """Return the acting side of DDPG; `tidemill.rl.agents.registry` calls this."""
    rng = torch.Generator().manual_seed(context.seed)
    actor, critic = build_actor(config, env_spec, rng), build_critic(config, env_spec, rng)

    def td_error_fn(batch: Mapping[str, Tensor]) -> Tensor:
        return (target_of(actor, critic, batch) - values_taken(critic, batch)).abs()

    return DeterministicPolicy(actor, critic, td_error_fn, config, env_spec.action_shape, context)
