"""The uniform selector, and the base of all selectors whose items have the same weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class EqualWeights:
    """Items that all have weight 1; see `Selector`."""

    _count = 0

    @property
    def total_weight(self) -> float:
        """The number of items."""
        return float(self._count)

    @property
    def pickable(self) -> int:
        """The number of items."""
        return self._count

    def can_pick(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return True for all."""
        return np.ones(len(slots), dtype=np.bool_)

    def weights(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return 1 for all."""
        return np.ones(len(slots))


class Uniform(EqualWeights):
    """Picks each item with the same probability; see `Selector`."""

    random = True

    def __init__(self, capacity: int) -> None:
        """Create an empty selector for slots 0 .. capacity - 1."""
        self._slots = np.zeros(capacity, dtype=np.int32)  # the items, without gaps, in any order
        self._position = np.zeros(capacity, dtype=np.int32)  # of each item in `_slots`
        self._count = 0

    def insert(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:  # noqa: ARG002 - the interface's
        """Add items."""
        end = self._count + len(slots)
        self._slots[self._count : end] = slots
        self._position[slots] = np.arange(self._count, end)
        self._count = end

    def update(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Do nothing: priorities do not matter here."""

    def remove(self, slots: NDArray[np.int64]) -> None:
        """Remove items; the last ones of the dense list move into the holes."""
        removed = self._position[slots]
        count = self._count - len(slots)
        stays = np.ones(len(slots), dtype=np.bool_)  # of the entries beyond the new end
        stays[removed[removed >= count] - count] = False
        holes = removed[removed < count]
        movers = self._slots[count : self._count][stays]
        self._slots[holes] = movers
        self._position[movers] = holes
        self._count = count

    def resized(self, capacity: int, used: int) -> Uniform:
        """Return a selector of another capacity with the same items."""
        new = Uniform(capacity)
        new._count = self._count
        new._slots[: self._count] = self._slots[: self._count]
        new._position[:used] = self._position[:used]
        return new

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Pick with replacement."""
        return self._slots[rng.integers(self._count, size=count)].astype(np.int64)

    def take(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Pick without replacement."""
        chosen = rng.choice(self._count, size=min(count, self._count), replace=False, shuffle=True)
        return self._slots[chosen].astype(np.int64)
