"""The torsos that come with the project, a file each, and how settings name one. Imports no torch."""

from __future__ import annotations

import pkgutil

from tidemill.config.check import nearest
from tidemill.config.user_code import user_module_exists
from tidemill.errors import ConfigError

NetworkSetting = bool | int | float | str | tuple[int, ...]
"""Values that a user-defined network may get from a config file or, except lists, from the command line."""


def torso_names() -> tuple[str, ...]:
    """Return the names of the torsos that come with the project, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def check_torso(name: str) -> None:
    """Raise ConfigError unless there is such a torso; a user's module must exist."""
    if is_ours(name):
        if name not in torso_names():
            allowed = f"one of {', '.join(torso_names())}, or module:name"
            raise ConfigError(f"network is {name!r}, but must be {allowed}{nearest(name, torso_names())}")
        return
    if not user_module_exists(name.partition(":")[0]):
        raise ConfigError(f"network is {name!r}, but must be a module that can be imported")


def is_ours(name: str) -> bool:
    """Return whether a name is of a file here, and not of a user's module."""
    return "." not in name and ":" not in name
