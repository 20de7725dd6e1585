"""The one form of a complaint about a setting."""

from __future__ import annotations

import re

from tidemill.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def check(is_valid: bool, field: str, value: object, allowed: str) -> None:
    """Raise a `ConfigError` that names the field, its value and what is allowed, unless `is_valid`."""
    if not is_valid:
        raise ConfigError(f"{field} is {value!r}, allowed: {allowed}")


def matches(name: str) -> bool:
    """Return whether a name is safe as a file name and as an actor's name."""
    return _NAME.fullmatch(name) is not None
