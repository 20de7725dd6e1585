"""TD3's acting side."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tidemill.rl.agents.deterministic_policy import DeterministicPolicy
from tidemill.rl.agents.interface import Acting
from tidemill.rl.agents.td3.config import TD3Config
from tidemill.rl.agents.td3.networks import build_actor, build_critic, target_of, values
from tidemill.rl.networks.flat import flat
from tidemill.types import EnvSpec


def build(config: TD3Config, env_spec: EnvSpec, acting: Acting) -> DeterministicPolicy:
    """Return the acting side of TD3; `tidemill.rl.agents.build` calls this."""
    rng = torch.Generator().manual_seed(acting.seed)
    actor, critic = build_actor(config, env_spec, rng), build_critic(config, env_spec, rng)

    def surprise(batch: Mapping[str, Tensor]) -> Tensor:
        """Return both critics' mean absolute TD error, [B], without the noise that smooths the learner's target."""
        following = flat(batch["bootstrap_observation"])
        q = values(critic, flat(batch["observation"]), batch["action"].flatten(1))
        return (target_of(critic, following, actor(following), batch) - q).abs().mean(dim=0)

    return DeterministicPolicy(actor, critic, surprise, config, env_spec.action_shape, acting)
