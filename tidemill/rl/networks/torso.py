"""The part of a network between an observation and its features, found by name.

A torso is a module with `build(env_spec, rng)`: one of `tidemill/rl/networks/torsos` by its file's name, or one of your
own by its dotted path.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

from tidemill.config.check import nearest
from tidemill.errors import ConfigError
from tidemill.rl.networks import torsos
from tidemill.types import EnvSpec
from tidemill.user_code import import_user_module, user_module_exists

if TYPE_CHECKING:
    import torch
    from torch import nn


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
    if not user_module_exists(name):
        raise ConfigError(f"network is {name!r}, but must be a module that can be imported")


def build_torso(name: str, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return a torso whose parameters come from `rng`, on the CPU.

    It takes observations [B, ...], or [B, frame_stack, ...] with a stack, of the environment's dtype, and returns
    features [B, outputs], where `outputs` is its attribute, in the dtype of its parameters.

    Args:
        name: Of a file in `torsos`, or the dotted path of a module.
        env_spec: Shapes of the environment.
        rng: Draws the initial parameters.

    Raises:
        ConfigError: The torso does not take such observations.
    """
    path = name if "." in name else f"{torsos.__name__}.{name}"
    module: Any = import_user_module(path)
    torso: nn.Module = module.build(env_spec, rng)
    return torso
