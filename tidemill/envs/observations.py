"""How an observation space becomes the shape and dtype of stored observations, and what is shown of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tidemill.errors import ConfigError


@dataclass(frozen=True)
class ObservationFormat:
    """Shape and dtype of one observation: `uint8` for images of bytes, `float32` for everything else."""

    shape: tuple[int, ...]
    dtype: str


def observation_format(space: gymnasium.Space[Any]) -> ObservationFormat:
    """Return how observations of a space are stored.

    Raises:
        ConfigError: The space is not an array of at least one axis; the message says how to flatten it.
    """
    if not isinstance(space, spaces.Box) or not space.shape:
        raise ConfigError(
            f"observations of {space} are not an array with at least one axis; "
            "set --env.flatten to make them one float32 vector"
        )
    is_image = space.dtype == np.uint8 and len(space.shape) >= 2
    return ObservationFormat(space.shape, "uint8" if is_image else "float32")


def flattened(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return an environment whose observations are one vector: dicts and tuples joined, discrete parts one-hot.

    Raises:
        ConfigError: They have no fixed size, as those of a graph or a sequence.
    """
    if not env.observation_space.is_np_flattenable:
        raise ConfigError(
            f"observations of {env.observation_space} have no fixed size, and env.flatten needs one; "
            "wrap the environment so that it returns an array"
        )
    return gymnasium.wrappers.FlattenObservation(env)


def select(env: gymnasium.Env[Any, Any], positions: Sequence[int]) -> gymnasium.Env[Any, Any]:
    """Return an environment that shows only the numbers at these positions of its vector observation.

    Raises:
        ConfigError: Observations are no vector, or it is shorter.
    """
    space, chosen = env.observation_space, np.array(positions)
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or chosen.max() >= space.shape[0]:
        raise ConfigError(
            f"env.observation_indices is {tuple(positions)}, but observations are {space}: "
            "allowed are positions in a vector (see also env.flatten)"
        )
    part = spaces.Box(space.low[chosen], space.high[chosen], dtype=space.dtype.type)
    return gymnasium.wrappers.TransformObservation(env, lambda observation: observation[chosen], part)
