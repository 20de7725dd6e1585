"""Checks that the agents' settings share."""

from __future__ import annotations

from tidemill.errors import ConfigError


def require(condition: bool, field: str, value: object, allowed: str) -> None:
    """Raise ConfigError that names the field, its value and what is allowed, unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{field} is {value!r}, but must be {allowed}")
