"""The selectors of highest and lowest priority."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.services.replay.extreme_tree import ExtremeTree


class PriorityHeap:
    """Picks the item of highest (or lowest) priority, of equal ones the one in the lowest slot; see `Selector`."""

    random = False

    def __init__(self, capacity: int, *, sign: float) -> None:
        """Create an empty selector for slots 0 .. capacity - 1; `sign` is 1 for the highest, -1 for the lowest."""
        self._tree = ExtremeTree(capacity)
        self._sign = sign
        self._count = 0

    @property
    def mass(self) -> float:
        """The number of items."""
        return float(self._count)

    @property
    def pickable(self) -> int:
        """The number of items."""
        return self._count

    def can_pick(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return True for all."""
        return np.ones(len(slots), dtype=np.bool_)

    def insert(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Add items."""
        self._tree.set(slots, self._sign * priorities)
        self._count += len(slots)

    def update(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Change priorities."""
        self._tree.set(slots, self._sign * priorities)

    def remove(self, slots: NDArray[np.int64]) -> None:
        """Remove items."""
        self._tree.set(slots, np.full(len(slots), -np.inf))
        self._count -= len(slots)

    def weights(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return 1 for all."""
        return np.ones(len(slots))

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG002 - the interface's
        """Pick the same first item `count` times."""
        return np.full(count, self._tree.greatest(), dtype=np.int64)

    def take(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG002 - the interface's
        """Pick items in order: each is hidden after its pick, and all are put back at the end."""
        taken = np.empty(min(count, self._count), dtype=np.int64)
        values = np.empty(len(taken))
        hidden = np.array([-np.inf])
        for i in range(len(taken)):
            taken[i] = self._tree.greatest()
            values[i : i + 1] = self._tree.values(taken[i : i + 1])
            self._tree.set(taken[i : i + 1], hidden)
        self._tree.set(taken, values)
        return taken
