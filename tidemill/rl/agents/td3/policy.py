"""TD3's acting side."""

from __future__ import annotations

import torch

from tidemill.rl.agents.deterministic_policy import DeterministicPolicy
from tidemill.rl.agents.interface import Acting
from tidemill.rl.agents.td3.config import TD3Config
from tidemill.rl.agents.td3.networks import build_actor
from tidemill.types import EnvSpec


def build(config: TD3Config, env_spec: EnvSpec, acting: Acting) -> DeterministicPolicy:
    """Return the acting side of TD3; `tidemill.rl.agents.build` calls this."""
    actor = build_actor(config, env_spec, torch.Generator().manual_seed(acting.seed))
    return DeterministicPolicy(actor, env_spec.action_shape, config.noise, config.random_steps, acting)
