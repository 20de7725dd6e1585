"""Settings of any algorithm, and whether they fit an environment. Imports no torch."""

from __future__ import annotations

from tidemill.errors import ConfigError
from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.agents.sac.config import SACConfig
from tidemill.types import EnvSpec

AgentConfig = DQNConfig | SACConfig
"""Settings of any algorithm; the field `algorithm` tells which."""

MIN_IMAGE_SIZE = 36
"""Pixels of the smallest side that the three convolutions of `nature` can take."""


def check_fit(config: AgentConfig, env_spec: EnvSpec) -> None:
    """Raise ConfigError if the algorithm, or its network, cannot act in the environment."""
    if isinstance(config, DQNConfig) != env_spec.is_discrete:
        kind = "discrete" if env_spec.is_discrete else "continuous"
        raise ConfigError(f"algorithm is {config.algorithm!r}, but the environment's actions are {kind}")
    if isinstance(config, DQNConfig) and config.network != "mlp":
        shape = env_spec.observation_shape
        if len(shape) != 2 or min(shape) < MIN_IMAGE_SIZE:
            raise ConfigError(
                f"network is {config.network!r}, which takes gray images [H, W] of at least "
                f"{MIN_IMAGE_SIZE}x{MIN_IMAGE_SIZE}, but observations have shape {shape}; use 'mlp'"
            )
