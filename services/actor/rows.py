"""The rows of one chunk of every stream, filled step by step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tidemill.types import Signature

Array = NDArray[np.generic]


class ChunkRows:
    """Room for `chunk_length` rows of each of N streams, column by column.

    Each stream's rows lie side by side in recurrent_state, [N, chunk_length, ...]: a chunk is encoded without a copy.
    """

    def __init__(self, signature: Signature, num_envs: int, chunk_length: int) -> None:
        """Take the memory once; it is used again for every chunk."""
        self._columns: dict[str, Array] = {
            column.name: np.zeros((num_envs, chunk_length, *column.shape), dtype=column.dtype) for column in signature
        }
        self._length = chunk_length
        self.filled = 0

    @property
    def is_full(self) -> bool:
        """Whether every row is filled."""
        return self.filled == self._length

    def add(self, row: Mapping[str, Array]) -> None:
        """Copy one row of every stream, each column [N, ...]."""
        for name, column in self._columns.items():
            column[:, self.filled] = row[name]
        self.filled += 1

    def columns_of(self, env_index: int) -> dict[str, Array]:
        """Return the filled rows of one stream, each [filled, ...]; valid until the next `clear`."""
        return {name: column[env_index, : self.filled] for name, column in self._columns.items()}

    def clear(self) -> None:
        """Forget the rows."""
        self.filled = 0
