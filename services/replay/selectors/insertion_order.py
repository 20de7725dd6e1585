"""The first-in-first-out and last-in-first-out selectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.services.replay.selectors.uniform import EqualWeights

_GONE = -1


class InsertionOrder(EqualWeights):
    """Picks the oldest item, or the newest; see `Selector`.

    Items stand in a ring in the order they came; one that leaves from the middle leaves a gap, which is skipped.
    """

    random = False

    def __init__(self, capacity: int, *, newest_first: bool) -> None:
        """Create an empty selector for slots 0 .. capacity - 1."""
        self._newest_first = newest_first
        self._ring = np.zeros(capacity + capacity // 4 + 64, dtype=np.int32)  # room for a quarter of gaps
        self._entry = np.zeros(capacity, dtype=np.int32)  # of each item in `_ring`
        self._head = 0  # entries head .. tail - 1 are in use, counted without end
        self._tail = 0
        self._count = 0

    def insert(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:  # noqa: ARG002 - the interface's
        """Add items, the first of `slots` being the oldest."""
        if self._tail + len(slots) - self._head > len(self._ring):
            self._close_gaps()
        self._append(slots)
        self._count += len(slots)

    def refill(self, slots: NDArray[np.integer]) -> None:
        """Hold these items and no others, the first of `slots` being the oldest."""
        self._head = self._tail = 0
        self._append(slots)
        self._count = len(slots)

    def move(self, slots: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        """Have items [N] at other slots [N]; their order stays."""
        self._entry[places] = entries = self._entry[slots]
        self._ring[entries] = places

    def resized(self, capacity: int, used: int) -> InsertionOrder:  # noqa: ARG002 - the interface's
        """Return a selector of another capacity with the same items."""
        new = InsertionOrder(capacity, newest_first=self._newest_first)
        new.refill(self._without_gaps())
        return new

    def update(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Do nothing: priorities do not matter here."""

    def remove(self, slots: NDArray[np.int64]) -> None:
        """Remove items."""
        self._ring[self._entry[slots]] = _GONE
        self._count -= len(slots)
        if self._count == 0:
            self._head = self._tail
        elif self._newest_first:
            self._tail = self._skip(self._tail - 1, -1) + 1
        else:
            self._head = self._skip(self._head, 1)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Pick the same first item `count` times."""
        return np.repeat(self.take(1, rng), count)

    def take(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG002 - the interface's
        """Pick items in order."""
        count = min(count, self._count)
        reach = count
        while True:
            slots = self._in_order(reach)
            slots = slots[slots != _GONE]
            if len(slots) >= count:
                found: NDArray[np.int64] = slots[:count].astype(np.int64)
                return found
            reach *= 2

    def _in_order(self, reach: int) -> NDArray[np.int32]:
        """Return the next `reach` entries in the order of picks, gaps included."""
        reach = min(reach, self._tail - self._head)
        positions = np.arange(reach)
        entries = self._tail - 1 - positions if self._newest_first else self._head + positions
        slots: NDArray[np.int32] = self._ring[entries % len(self._ring)]
        return slots

    def _skip(self, entry: int, step: int) -> int:
        """Return the first entry at or after `entry` that is not a gap; there must be one."""
        reach = 64
        while True:
            found = np.flatnonzero(self._ring[np.arange(entry, entry + step * reach, step) % len(self._ring)] != _GONE)
            if len(found):
                return entry + step * int(found[0])
            entry += step * reach
            reach *= 2

    def _close_gaps(self) -> None:
        self.refill(self._without_gaps())

    def _without_gaps(self) -> NDArray[np.int32]:
        slots = np.roll(self._ring, -self._head)[: self._tail - self._head]
        left: NDArray[np.int32] = slots[slots != _GONE]
        return left

    def _append(self, slots: NDArray[np.integer]) -> None:
        entries = np.arange(self._tail, self._tail + len(slots)) % len(self._ring)
        self._ring[entries] = slots
        self._entry[slots] = entries
        self._tail += len(slots)
