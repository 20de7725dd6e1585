"""Counts of what is stored by the segment of the log that has it, so that no table need be searched for a segment."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

_MOST_PENDING = 65_536


class SegmentCounts:
    """Counts the chunks of a store, or the items of a table, in each segment. Segment 0 has what no segment has."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts: Counter[int] = Counter()
        self._left: list[NDArray[np.integer]] = []  # not counted yet: many together take less time
        self._left_count = 0

    def add(self, segment: int, count: int) -> None:
        """Count so many more in a segment."""
        self._counts[segment] += count

    def add_each(self, segments: NDArray[np.integer]) -> None:
        """Count one more in each of some segments [N], which may repeat."""
        self._change(segments, 1)

    def remove_each(self, segments: NDArray[np.integer]) -> None:
        """Count one less in each of some segments [N], which may repeat; the array is kept."""
        self._left.append(segments)
        self._left_count += 1 + len(segments)
        if self._left_count > _MOST_PENDING:
            self._settle()

    def count(self, segment: int) -> int:
        """Return how much there is in a segment."""
        self._settle()
        return self._counts[segment]

    def _settle(self) -> None:
        if self._left:
            self._change(np.concatenate(self._left), -1)
            self._counts = +self._counts  # without the segments that have nothing
            self._left, self._left_count = [], 0

    def _change(self, segments: NDArray[np.integer], by: int) -> None:
        numbers, counts = np.unique(segments, return_counts=True)
        self._counts.update(dict(zip(numbers.tolist(), (by * counts).tolist(), strict=True)))
