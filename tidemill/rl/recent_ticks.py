"""The last ticks of every environment of an actor, which first priorities are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class RecentTicks:
    """A window of the newest `length` rows of each of `num_envs` streams, all columns side by side."""

    def __init__(self, length: int, num_envs: int) -> None:
        assert min(length, num_envs) >= 1, f"length {length} and num_envs {num_envs} must be at least 1"
        self._length = length
        self._columns: dict[str, Array] = {}
        self._filled = np.zeros(num_envs, dtype=np.int64)

    def push(self, row: Mapping[str, Array], written: NDArray[np.bool_] | None = None) -> None:
        """Add one row of each environment.

        Args:
            row: Columns of the rows, each [N, ...]; the same names at every call.
            written: Which environments wrote a row, [N]; None if all did. The others keep their window.
        """
        who: slice | NDArray[np.bool_] = slice(None) if written is None else written
        for name, value in row.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = np.zeros((self._length, *value.shape), dtype=value.dtype)
            column[:-1, who] = column[1:, who]
            column[-1, who] = value[who]
        self._filled[who] += 1

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Which environments have written at least `length` rows, [N]."""
        return self._filled >= self._length

    def window(self) -> Mapping[str, Array]:
        """Return each column's newest rows, oldest first, [length, N, ...]; valid until the next `push`."""
        return self._columns
