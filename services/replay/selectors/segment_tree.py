"""A tree in which every node has 16 children, stored as one array a level.

Wide nodes make it shallow (five levels for a million leaves), so that an operation on a batch of leaves is a handful
of NumPy calls; and since a node is always recomputed from its children, rounding errors never pile up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

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
            widest_top: SegmentTree are added until the top has at most this many entries.
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
            above.reshape(-1)[indices] = self._combine.reduce(below[indices], axis=1)
