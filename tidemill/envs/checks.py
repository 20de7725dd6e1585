"""Checks of what environments return; every message names the environment and the step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import FatalError


def check_finite(
    observation: NDArray[Any], reward: NDArray[np.floating[Any]], lengths: NDArray[np.int64], name: str = "observation"
) -> None:
    """Raise FatalError if any environment returned NaN or infinity, which would poison the networks.

    Args:
        observation: [N, ...].
        reward: [N].
        lengths: Agent decisions of each episode so far, [N].
        name: What the observation is called in messages.
    """
    for what, rows in ((name, observation), ("reward", reward)):
        if rows.dtype != np.uint8 and not np.isfinite(rows).all():
            index = next(i for i, row in enumerate(rows) if not np.isfinite(row).all())
            found = f"returned a non-finite {what}: {_described(rows[index])}"
            raise FatalError(f"{place(index, lengths[index])} {found}; allowed: finite numbers")


def as_float32(reward: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return rewards in the dtype that is stored; one that is too large for it becomes infinite, without a warning."""
    with np.errstate(over="ignore"):
        return reward.astype(np.float32)


def place(index: int, step: int) -> str:
    """Return where something went wrong; step 0 is the reset."""
    return f"environment {index} at step {step} of its episode"


_SHOWN_NUMBERS = 8


def _described(value: NDArray[Any]) -> str:
    """Return a value in one line; of a large array only which of its numbers is wrong."""
    if value.size <= _SHOWN_NUMBERS and value.ndim <= 1:
        return str(value)
    wrong = np.argwhere(~np.isfinite(value))
    first = tuple(wrong[0].tolist())
    return f"{value[first]} at {list(first)}, {len(wrong)} of {value.size} numbers"
