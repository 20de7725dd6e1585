"""The selectors of highest and lowest priority, and the tree that finds it."""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray

from tidemill.services.replay.selectors.segment_tree import FAN_OUT, SegmentTree
from tidemill.services.replay.selectors.uniform import EqualWeights

_SIGN = np.uint64(1 << 63)
_EMPTY = np.uint64(0)

_SLOTS_PER_PICK = 2048
"""Slots that are sorted in the time of one pick."""


class MaxTree:
    """Finds the greatest of the values of `capacity` slots; of equal ones, the lowest slot.

    Values are kept as whole numbers of the same order, all above 0: an empty slot is then a 0, of which a large table
    may have any number without memory behind them.
    """

    def __init__(self, capacity: int) -> None:
        """Create a tree of empty slots 0 .. capacity - 1."""
        self.capacity = capacity
        self._tree = SegmentTree(capacity, np.maximum, np.uint64, FAN_OUT)

    def resized(self, capacity: int, used: int) -> MaxTree:
        """Return a tree of another capacity with the values of the first `used` slots."""
        new = MaxTree(capacity)
        new._tree.copy_leaves(self._tree, used)
        return new

    def values(self, slots: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the values of slots [N]; minus infinity for an empty one."""
        return _number(self._tree.leaves[slots])

    def set(self, slots: NDArray[np.integer], values: NDArray[np.float64]) -> None:
        """Set the values [N] of slots [N]; minus infinity empties a slot."""
        self._tree.set(slots, _rank(values))

    def argmax(self) -> int:
        """Return the slot of the greatest value; at least one slot must not be empty."""
        found = 0
        for level in reversed(self._tree.arrays):
            found = found * FAN_OUT + int(level[found].argmax())
        return found

    def greatest(self, count: int) -> NDArray[np.int64]:
        """Return the slots of the `count` greatest values, the greatest first; of equal ones, the lowest slot first."""
        ranks = ~self._tree.leaves  # the greatest value is the lowest, and empty slots come last
        count = min(count, len(ranks))
        least = np.partition(ranks, count - 1)[count - 1] if count else _EMPTY
        slots = np.flatnonzero(ranks <= least)
        return slots[np.argsort(ranks[slots], kind="stable")[:count]]


def _rank(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return whole numbers [N] in the order of numbers [N] (IEEE 754 orders the bits of positive ones), 0 for -inf."""
    bits = (values + 0.0).view(np.uint64)  # which makes one zero of the two
    return np.where(values == -np.inf, _EMPTY, np.where(bits < _SIGN, bits | _SIGN, ~bits))


def _number(ranks: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the numbers [N] that `_rank` was given."""
    bits = np.where(ranks < _SIGN, ~ranks, ranks & ~_SIGN)
    return np.where(ranks == _EMPTY, -np.inf, bits.view(np.float64))


class PriorityHeap(EqualWeights):
    """Picks the item of highest (or lowest) priority, of equal ones the one in the lowest slot; see `Selector`."""

    random = False

    def __init__(self, capacity: int, *, sign: float) -> None:
        """Create an empty selector for slots 0 .. capacity - 1; `sign` is 1 for the highest, -1 for the lowest."""
        self._tree = MaxTree(capacity)
        self._sign = sign
        self._count = 0

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

    def resized(self, capacity: int, used: int) -> PriorityHeap:
        """Return a selector of another capacity with the same items."""
        new = copy.copy(self)
        new._tree = self._tree.resized(capacity, used)
        return new

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG002 - the interface's
        """Pick the same first item `count` times."""
        return np.full(count, self._tree.argmax(), dtype=np.int64)

    def take(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG002 - the interface's
        """Pick items in order: many by sorting, of few each is hidden after its pick and put back at the end."""
        count = min(count, self._count)
        if count * _SLOTS_PER_PICK > self._tree.capacity:
            return self._tree.greatest(count)
        taken = np.empty(count, dtype=np.int64)
        values = np.empty(len(taken))
        hidden = np.array([-np.inf])
        for i in range(len(taken)):
            taken[i] = self._tree.argmax()
            values[i : i + 1] = self._tree.values(taken[i : i + 1])
            self._tree.set(taken[i : i + 1], hidden)
        self._tree.set(taken, values)
        return taken
