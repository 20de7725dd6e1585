"""Which torsos there are. Imports no torch, so that settings can be checked anywhere."""

from __future__ import annotations

import importlib.util
import pkgutil

from tidemill.errors import ConfigError
from tidemill.nearest import nearest
from tidemill.rl.networks import torsos


def torso_names() -> tuple[str, ...]:
    """Return the names of the torsos that come with the project, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(torsos.__path__)))


def check_torso(name: str) -> None:
    """Raise ConfigError unless there is such a torso; a dotted path is one's own module, which must exist."""
    if "." not in name:
        if name not in torso_names():
            allowed = f"one of {', '.join(torso_names())}, or a module's dotted path"
            raise ConfigError(f"network is {name!r}, but must be {allowed}{nearest(name, torso_names())}")
        return
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        found = None
    if found is None:
        raise ConfigError(f"network is {name!r}, but must be a module that can be imported")
