"""Checks that the agents' settings share."""

from __future__ import annotations

from tidemill.errors import ConfigError
from tidemill.types import EnvSpec


def require(condition: bool, field: str, value: object, allowed: str) -> None:
    """Raise ConfigError that names the field, its value and what is allowed, unless `condition` holds."""
    if not condition:
        raise ConfigError(f"agent.{field} is {value!r}, but must be {allowed}")


def require_at_least(least: int, settings: object, *fields: str) -> None:
    """Raise ConfigError unless each field of the settings is at least a number."""
    for field in fields:
        value = getattr(settings, field)
        require(value >= least, field, value, f"at least {least}" if least else "0 or more")


def require_positive(settings: object, *fields: str) -> None:
    """Raise ConfigError unless each field of the settings is above 0."""
    for field in fields:
        value = getattr(settings, field)
        require(value > 0, field, value, "positive")


def require_fractions(settings: object, *fields: str) -> None:
    """Raise ConfigError unless each field of the settings is between 0 and 1."""
    for field in fields:
        value = getattr(settings, field)
        require(0 <= value <= 1, field, value, "between 0 and 1")


def require_sizes(settings: object, *fields: str) -> None:
    """Raise ConfigError unless each field of the settings has sizes of layers, at least one."""
    for field in fields:
        sizes = getattr(settings, field)
        require(len(sizes) > 0 and min(sizes) > 0, field, sizes, "at least one size, each positive")


def require_actions(algorithm: str, env_spec: EnvSpec, *, discrete: bool) -> None:
    """Raise ConfigError unless the environment's actions are of the kind that the algorithm chooses.

    Several discrete choices at once are refused: an algorithm that makes them does not ask here.
    """
    if env_spec.action_sizes:
        count = len(env_spec.action_sizes)
        joint = ", or env.joint_actions to true, which makes every combination one action" if discrete else ""
        raise ConfigError(
            f"algorithm is {algorithm!r}, but the environment's actions are {count} discrete choices at once: "
            f"set agent.algorithm to {_choosing('any')}{joint}"
        )
    if env_spec.is_discrete != discrete:
        kind = "discrete" if env_spec.is_discrete else "continuous"
        raise ConfigError(
            f"algorithm is {algorithm!r}, but the environment's actions are {kind}: "
            f"set agent.algorithm to {_choosing(kind, 'any')}"
        )


def _choosing(*kinds: str) -> str:
    """Return the names of the project's algorithms that choose such actions, with `or` between them."""
    from tidemill.rl.agents.registry import ALGORITHMS, config_class  # the settings that it finds import these checks

    return " or ".join(name for name in ALGORITHMS if getattr(config_class(name), "actions", "") in kinds)
