"""Settings of any algorithm: what all have in common, and how they are found by name. Imports no torch.

An algorithm is a folder with `config.py`, `networks.py`, `loss.py`, `agent.py` and `policy.py`: docs/algorithms.md
shows how to write one. Nothing outside the folder names it.
"""

from __future__ import annotations

import dataclasses
import pkgutil
from typing import Protocol, cast

from tidemill.config.check import nearest
from tidemill.errors import ConfigError
from tidemill.rl import agents
from tidemill.types import EnvSpec, WindowSpec
from tidemill.user_code import import_user_module


class AgentConfig(Protocol):
    """A frozen dataclass of one algorithm's settings, in `config.py` of its folder."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm: of a folder in `tidemill/rl/agents`, or a package's dotted path."""

    @property
    def batch_size(self) -> int:
        """Items of one update."""

    def window(self, frame_stack: int) -> WindowSpec:
        """Return which steps of a stream an item covers, given how many frames the network sees."""

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if the algorithm cannot act in such an environment."""


def algorithms() -> tuple[str, ...]:
    """Return the names of the algorithms that come with the project, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(agents.__path__) if module.ispkg))


def config_class(algorithm: str) -> type[AgentConfig]:
    """Return the settings' class of an algorithm: the dataclass with a field `algorithm` in its `config.py`.

    Args:
        algorithm: One of `algorithms()`, or the dotted path of a package of one's own, such as `my_project.my_agent`.

    Raises:
        ConfigError: There is no such algorithm; the message names the nearest one.
    """
    if "." not in algorithm and algorithm not in algorithms():
        hint = nearest(algorithm, algorithms())
        raise ConfigError(f"agent.algorithm is {algorithm!r}, allowed: {', '.join(algorithms())}, or a package{hint}")
    name = f"{algorithm}.config" if "." in algorithm else f"{agents.__name__}.{algorithm}.config"
    try:
        module = import_user_module(name)
    except ImportError as error:
        raise ConfigError(f"agent.algorithm is {algorithm!r}, but importing {name} failed: {error}") from error
    for value in vars(module).values():
        is_settings = isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == name
        if is_settings and getattr(value, "algorithm", None) == algorithm:
            return cast(type[AgentConfig], value)
    raise ConfigError(f"agent.algorithm is {algorithm!r}, but {name} has no dataclass whose `algorithm` it is")
