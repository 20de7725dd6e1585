"""Trees in which every node has 16 children, stored as one array a level: of any kind, and of sums.

Wide nodes make it shallow (five levels for a million leaves), so that an operation on a batch of leaves is a handful
of NumPy calls; and since a node is always recomputed from its children, rounding errors never pile up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tidemill import kernel

FAN_OUT = 16


class SegmentTree:
    """Leaves, and above them levels of nodes that each combine 16 entries below.

    Attributes:
        arrays: Leaves first; each [blocks, 16], where entry i of level k + 1 combines block i of level k.
    """

    def __init__(self, capacity: int, combine: np.ufunc, dtype: DTypeLike, widest_top: int) -> None:
        """Create a tree of empty leaves, whose value is 0; memory is taken only as leaves are set.

        Args:
            capacity: Number of leaves, at least 1; any number.
            combine: Has 0 as neutral element among the values of leaves: `np.add`, or `np.maximum` of none below 0.
            dtype: Of the values.
            widest_top: Levels are added until the top has at most this many entries.
        """
        self._combine = combine
        self.arrays: list[NDArray[Any]] = []
        entries = capacity
        while True:
            blocks = -(-entries // FAN_OUT)
            self.arrays.append(np.zeros((blocks, FAN_OUT), dtype))  # not backed by memory until they are written
            if blocks * FAN_OUT <= max(widest_top, FAN_OUT):
                break
            entries = blocks

    @property
    def leaves(self) -> NDArray[Any]:
        """All leaves as one flat view, padding included."""
        return self.arrays[0].reshape(-1)

    @property
    def top(self) -> NDArray[Any]:
        """All entries of the top level as one flat view."""
        return self.arrays[-1].reshape(-1)

    def set(self, indices: NDArray[np.integer], values: NDArray[Any]) -> None:
        """Set leaves [N] to values [N] and recompute the nodes above; the last of repeated indices counts."""
        self.leaves[indices] = values
        for below, above in zip(self.arrays[:-1], self.arrays[1:], strict=True):
            indices = indices // FAN_OUT  # repeated parents are recomputed alike, which costs less than finding them
            if len(indices) < len(below):
                above.reshape(-1)[indices] = self._combine.reduce(below[indices], axis=1)
            else:
                above.reshape(-1)[: len(below)] = self._combine.reduce(below, axis=1)

    def copy_leaves(self, other: SegmentTree, used: int) -> None:
        """Take the first `used` leaves of another tree, of any capacity, into this empty one."""
        self.leaves[:used] = other.leaves[:used]
        for below, above in zip(self.arrays[:-1], self.arrays[1:], strict=True):
            used = -(-used // FAN_OUT)
            above.reshape(-1)[:used] = self._combine.reduce(below[:used], axis=1)


_WIDEST_TOP = 4096  # a cumulative sum over this many costs less than another level
_JUST_BELOW_ONE = 1 - 2**-52  # keeps a target below a sum that rounding made it reach


class SumTree:
    """Non-negative weights of `capacity` slots, their sum, and search by cumulative weight.

    All operations take a batch; a slot of weight 0 is never found.
    """

    def __init__(self, capacity: int) -> None:
        """Create a tree of zero weights for slots 0 .. capacity - 1; any capacity of at least 1."""
        self._tree = SegmentTree(capacity, np.add, np.float64, _WIDEST_TOP)
        self._loops = kernel.SumTreeLoops(self._tree.arrays) if kernel.available else None

    def resized(self, capacity: int, used: int) -> SumTree:
        """Return a tree of another capacity with the weights of the first `used` slots."""
        new = SumTree(capacity)
        new._tree.copy_leaves(self._tree, used)
        return new

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._tree.top.sum())

    def weights(self, slots: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the weights of slots [N]."""
        found: NDArray[np.float64] = self._tree.leaves[slots]
        return found

    def set(self, slots: NDArray[np.integer], weights: NDArray[np.float64]) -> None:
        """Set weights [N], finite and not negative, of slots [N]; the last of repeated slots counts."""
        if self._loops is not None:
            self._loops.set(slots, weights)
        else:
            self._tree.set(slots, weights)

    def find(self, targets: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return for each target the first slot whose cumulative weight exceeds it, int64 [N].

        Args:
            targets: Numbers in [0, total), float64 [N]; the total must not be 0.
        """
        if self._loops is not None:
            return self._loops.find(targets)
        top = self._tree.top
        cumulative = np.cumsum(top)
        targets = np.minimum(targets, cumulative[-1] * _JUST_BELOW_ONE)
        found = np.searchsorted(cumulative, targets, side="right")
        targets = targets - (cumulative[found] - top[found])
        for level in reversed(self._tree.arrays[:-1]):
            child, targets = _descend(level.take(found, axis=0), targets)
            found = found * FAN_OUT + child
        return found


def _descend(
    weights: NDArray[np.float64], targets: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the child [N] of each node that its target falls on, and the rest of the target below that child.

    Args:
        weights: Weights of the node's children, [N, 16], not all 0.
        targets: Where in the node to look, [N]; rounding may have put it slightly outside.
    """
    cumulative = weights.copy()
    for child in range(1, FAN_OUT):  # faster than cumsum over so short an axis, and not as a matrix product, whose sums
        cumulative[:, child] += cumulative[:, child - 1]  # are added in an order that depends on the processor
    targets = np.minimum(np.maximum(targets, 0.0), cumulative[:, -1] * _JUST_BELOW_ONE)
    found = (cumulative > targets[:, None]).argmax(axis=1)
    rows = np.arange(len(found))
    return found, targets - (cumulative[rows, found] - weights[rows, found])
