"""How many bytes of chunks stay in memory, and which leave first."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol


class Coolable(Protocol):
    """Where blobs are kept."""

    def is_warm(self, slot: int, chunk_id: int) -> bool:
        """Return whether a chunk's blob is in memory, and the slot still that chunk's."""
        ...

    def cool(self, slot: int) -> int:
        """Leave a blob to the log; return the bytes that became free."""
        ...


class MemoryBudget:
    """Counts the bytes of blobs in memory; beyond its limit the oldest leave, once the log has them."""

    def __init__(self, max_bytes: int) -> None:
        """Create an empty budget; `max_bytes` of 0 means no limit."""
        self._max_bytes = max_bytes
        self._written = 0
        self._queue: deque[tuple[Coolable, int, int, int]] = deque()  # store, slot, chunk, sequence; oldest first
        self._sweep_at = _FIRST_SWEEP
        self.size_bytes = 0

    @property
    def room_bytes(self) -> int:
        """Bytes that may still come into memory."""
        return self._max_bytes - self.size_bytes if self._max_bytes else _NO_LIMIT

    def came(self, size_bytes: int) -> None:
        """Count a blob that came into memory."""
        self.size_bytes += size_bytes

    def left(self, size_bytes: int) -> None:
        """Count a blob that was freed."""
        self.size_bytes -= size_bytes

    def may_cool(self, store: Coolable, slots: Sequence[int], chunk_ids: Sequence[int], sequence: int) -> None:
        """Note that blobs in memory may leave it once the log has record `sequence`."""
        if self._max_bytes:
            self._queue.extend((store, *chunk, sequence) for chunk in zip(slots, chunk_ids, strict=True))
            self._shrink()

    def written(self, sequence: int) -> None:
        """Note that the log has every record up to one."""
        self._written = sequence
        self._shrink()

    def _shrink(self) -> None:
        queue = self._queue
        while self.room_bytes < 0 and queue and queue[0][3] <= self._written:
            store, slot, chunk_id, _ = queue.popleft()
            if store.is_warm(slot, chunk_id):
                self.size_bytes -= store.cool(slot)
        if len(queue) > self._sweep_at:  # blobs that were freed leave their entries behind
            self._queue = deque(entry for entry in queue if entry[0].is_warm(entry[1], entry[2]))
            self._sweep_at = max(2 * len(self._queue), _FIRST_SWEEP)


_FIRST_SWEEP = 4096
_NO_LIMIT = 2**62
