"""TD3's acting side."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tidemill.rl.agents.deterministic_policy import DeterministicPolicy
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.agents.td3.config import TD3Config
from tidemill.rl.agents.td3.networks import build_actor, build_critic, target_of, values
from tidemill.types import EnvSpec


def build(config: TD3Config, env_spec: EnvSpec, context: PolicyContext) -> DeterministicPolicy:
    """Return the acting side of TD3; `tidemill.rl.agents.registry` calls this."""
    rng = torch.Generator().manual_seed(context.seed)
    actor, critic = build_actor(config, env_spec, rng), build_critic(config, env_spec, rng)

    def td_error_fn(batch: Mapping[str, Tensor]) -> Tensor:
        """Return both critics' mean absolute TD error, [B], without the noise that smooths the learner's target."""
        next_observation = batch["bootstrap_observation"]
        q = values(critic, batch["observation"], batch["action"].flatten(1))
        return (target_of(critic, next_observation, actor(next_observation), batch) - q).abs().mean(dim=0)

    return DeterministicPolicy(actor, critic, td_error_fn, config, env_spec.action_shape, context)
