"""How an observation space becomes the shape and dtype of stored observations."""

from __future__ import annotations

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
