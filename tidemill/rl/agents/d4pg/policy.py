"""D4PG's acting side."""

from __future__ import annotations

import torch

from tidemill.rl.agents.d4pg.config import D4PGConfig
from tidemill.rl.agents.d4pg.networks import build_actor
from tidemill.rl.agents.deterministic_policy import DeterministicPolicy
from tidemill.rl.agents.interface import Acting
from tidemill.types import EnvSpec


def build(config: D4PGConfig, env_spec: EnvSpec, acting: Acting) -> DeterministicPolicy:
    """Return the acting side of D4PG; `tidemill.rl.agents.build` calls this."""
    actor = build_actor(config, env_spec, torch.Generator().manual_seed(acting.seed))
    return DeterministicPolicy(actor, env_spec.action_shape, config.noise, config.random_steps, acting)
