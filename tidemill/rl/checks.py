"""Checks that the agents' settings share."""

from __future__ import annotations

from tidemill.errors import ConfigError


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
