"""Checks that the agents' settings share."""

from __future__ import annotations

from tidemill.errors import ConfigError
from tidemill.types import EnvSpec


def require(condition: bool, field: str, value: object, allowed: str) -> None:
    """Raise ConfigError that names the field, its value and what is allowed, unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{field} is {value!r}, but must be {allowed}")


def require_actions(algorithm: str, env_spec: EnvSpec, *, discrete: bool) -> None:
    """Raise ConfigError unless the environment's actions are of the kind that the algorithm chooses."""
    if env_spec.is_discrete != discrete:
        kind = "discrete" if env_spec.is_discrete else "continuous"
        raise ConfigError(f"algorithm is {algorithm!r}, but the environment's actions are {kind}")
