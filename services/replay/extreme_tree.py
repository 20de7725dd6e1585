"""Priorities of items, and the item of highest or lowest priority."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.services.replay.levels import FAN_OUT, Levels

_SIGN = np.uint64(1 << 63)
_EMPTY = np.uint64(0)


class ExtremeTree:
    """Finds the greatest of the values of `capacity` slots; of equal ones, the lowest slot.

    Values are kept as whole numbers of the same order, all above 0: an empty slot is then a 0, of which a large table
    may have any number without memory behind them.
    """

    def __init__(self, capacity: int) -> None:
        """Create a tree of empty slots 0 .. capacity - 1."""
        self._levels = Levels(capacity, np.maximum, np.uint64, FAN_OUT)

    def values(self, slots: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the values of slots [N]; minus infinity for an empty one."""
        return _number(self._levels.leaves[slots])

    def set(self, slots: NDArray[np.integer], values: NDArray[np.float64]) -> None:
        """Set the values [N] of slots [N]; minus infinity empties a slot."""
        self._levels.set(slots, _rank(values))

    def greatest(self) -> int:
        """Return the slot of the greatest value; at least one slot must not be empty."""
        found = 0
        for level in reversed(self._levels.arrays):
            found = found * FAN_OUT + int(level[found].argmax())
        return found


def _rank(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return whole numbers [N] in the order of numbers [N] (IEEE 754 orders the bits of positive ones), 0 for -inf."""
    bits = (values + 0.0).view(np.uint64)  # which makes one zero of the two
    return np.where(values == -np.inf, _EMPTY, np.where(bits < _SIGN, bits | _SIGN, ~bits))


def _number(ranks: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return what `_rank` was given."""
    bits = np.where(ranks < _SIGN, ~ranks, ranks & ~_SIGN)
    return np.where(ranks == _EMPTY, -np.inf, bits.view(np.float64))
