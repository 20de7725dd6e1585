"""Priorities of items, and the item of highest or lowest priority."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.replay.levels import FAN_OUT, Levels


class ExtremeTree:
    """Finds the greatest of the values of `capacity` slots; of equal ones, the lowest slot."""

    def __init__(self, capacity: int) -> None:
        """Create a tree of empty slots 0 .. capacity - 1."""
        self._levels = Levels(capacity, np.maximum, -np.inf, FAN_OUT)

    def values(self, slots: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the values of slots [N]; minus infinity for an empty one."""
        found: NDArray[np.float64] = self._levels.leaves[slots]
        return found

    def set(self, slots: NDArray[np.integer], values: NDArray[np.float64]) -> None:
        """Set the values [N] of slots [N]; minus infinity empties a slot."""
        self._levels.set(slots, values)

    def greatest(self) -> int:
        """Return the slot of the greatest value; at least one slot must not be empty."""
        found = 0
        for level in reversed(self._levels.arrays):
            found = found * FAN_OUT + int(level[found].argmax())
        return found
