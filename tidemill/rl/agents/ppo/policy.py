"""PPO's acting side, which it shares with the other algorithms that learn from rollouts."""

from __future__ import annotations

from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.agents.on_policy import ActorCriticPolicy
from tidemill.rl.settings.on_policy import PPOConfig
from tidemill.types import EnvSpec


def build(config: PPOConfig, env_spec: EnvSpec, context: PolicyContext) -> ActorCriticPolicy:
    """Return the acting side of PPO; `tidemill.rl.agents.build` calls this."""
    return ActorCriticPolicy(config, env_spec, context)
