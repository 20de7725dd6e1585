"""Which chunks the items of one table need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.services.replay.chunks.store import ChunkStore

Ints = NDArray[np.int64]


class ChunkRefCounts:
    """Counts for each chunk the items of a table that need it, and holds it in the store while any does."""

    def __init__(self, store: ChunkStore) -> None:
        """Hold nothing yet."""
        self._store = store
        self._items = np.zeros(0, dtype=np.int32)  # by chunk slot
        self.size_bytes = 0

    def acquire(self, chunks: Ints) -> None:
        """Note one more item for each entry of `chunks` [N], which may repeat."""
        self._cover_store()
        new = np.unique(chunks[self._items[chunks] == 0])
        np.add.at(self._items, chunks, 1)
        self.size_bytes += self._store.bytes_of(new)
        self._store.acquire(new)

    def release(self, chunks: Ints) -> None:
        """Note one item less for each entry of `chunks` [N], which may repeat."""
        np.subtract.at(self._items, chunks, 1)
        unneeded = np.unique(chunks[self._items[chunks] == 0])
        self.size_bytes -= self._store.bytes_of(unneeded)
        self._store.release(unneeded)

    def clear(self) -> None:
        """Let go of every chunk."""
        self._store.release(self.chunks())
        self._items[:] = 0
        self.size_bytes = 0

    def chunks(self) -> Ints:
        """Return the chunks that any item needs."""
        return np.flatnonzero(self._items)

    def _cover_store(self) -> None:
        if len(self._items) < self._store.capacity:
            grown = np.zeros(self._store.capacity, dtype=np.int32)
            grown[: len(self._items)] = self._items
            self._items = grown
