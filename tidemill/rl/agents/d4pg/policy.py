"""D4PG's acting side."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tidemill.rl.agents.d4pg.config import D4PGConfig
from tidemill.rl.agents.d4pg.networks import build_actor, build_critic, logits_taken, target_of
from tidemill.rl.agents.deterministic_policy import DeterministicPolicy
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.losses.categorical import atoms, divergence
from tidemill.types import EnvSpec


def build(config: D4PGConfig, env_spec: EnvSpec, context: PolicyContext) -> DeterministicPolicy:
    """Return the acting side of D4PG; `tidemill.rl.agents.registry` calls this."""
    rng = torch.Generator().manual_seed(context.seed)
    actor, critic = build_actor(config, env_spec, rng), build_critic(config, env_spec, rng)
    support = atoms(config.value_min, config.value_max, config.num_atoms, context.device)

    def td_error_fn(batch: Mapping[str, Tensor]) -> Tensor:
        return divergence(logits_taken(critic, batch), target_of(actor, critic, batch, support))

    return DeterministicPolicy(actor, critic, td_error_fn, config, env_spec.action_shape, context)
