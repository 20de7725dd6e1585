"""How much memory a server takes for its callers, and which chunks leave it first."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from tidemill.errors import ResourceExhausted


class Coolable(Protocol):
    """Where blobs are kept."""

    def is_warm(self, slot: int, chunk_id: int) -> bool:
        """Return whether a chunk's blob is in memory, and the slot still that chunk's."""
        ...

    def cool(self, slot: int) -> int:
        """Leave a blob to the log; return the bytes that became free."""
        ...


class MemoryBudget:
    """Counts what is in memory: what is stored, and what is on its way to callers or waits to be stored.

    Of the whole a half is for what is stored: chunks, payloads, the columns of items, streams. Beyond it the oldest
    blobs leave memory, once the log has them. Of the rest one half is for batches on their way, the other for messages
    that wait. Chunks that streams alone keep in memory may fill half of what is stored.

    Attributes:
        stored_limit: Bytes that may be stored; 0 means no limit, here and of all the others.
        share_limit: Bytes that batches may take, that messages may take, and that streams may keep: each as many.
        size_bytes: Bytes of blobs in memory that a log has or will have.
        beside_bytes: Bytes of all else that is stored.
        batch_bytes: Bytes of batches on their way.
        message_bytes: Bytes of messages that wait.
    """

    def __init__(self, stored_limit: int) -> None:
        """Create an empty budget of twice as many bytes as may be stored."""
        self.stored_limit = stored_limit
        self.share_limit = stored_limit // 2
        self.beside_bytes = self.batch_bytes = self.message_bytes = 0
        self._written = 0
        self._queue: deque[tuple[Coolable, int, int, int]] = deque()  # store, slot, chunk, sequence; oldest first
        self._sweep_at = _FIRST_SWEEP
        self.size_bytes = 0

    @property
    def room_bytes(self) -> int:
        """Bytes that may still be stored in memory."""
        return self.stored_limit - self.size_bytes - self.beside_bytes if self.stored_limit else _NO_LIMIT

    def excess_bytes(self, coming: int) -> int:
        """Return how many bytes too many are stored, blobs aside, with those that come; 0 if there is room for them."""
        return max(self.beside_bytes + coming - self.stored_limit, 0) if self.stored_limit else 0

    @property
    def has_room_for_batch(self) -> bool:
        """Whether another batch may be put together; it may itself go beyond the limit."""
        return not self.share_limit or self.batch_bytes < self.share_limit

    def hold_message(self, size_bytes: int) -> None:
        """Count a message that waits; the caller takes it back from `message_bytes`.

        Raises:
            ResourceExhausted: with those that wait already it is too much.
        """
        if self.share_limit and self.message_bytes and self.message_bytes + size_bytes > self.share_limit:
            raise ResourceExhausted(
                f"a message of {size_bytes} bytes would have to wait beside others of {self.message_bytes}, at most "
                f"{self.share_limit} may wait (a quarter of max_memory_mib)"
            )
        self.message_bytes += size_bytes

    def came(self, size_bytes: int) -> None:
        """Count a blob that came into memory."""
        self.size_bytes += size_bytes

    def left(self, size_bytes: int) -> None:
        """Count a blob that was freed."""
        self.size_bytes -= size_bytes

    def may_cool(self, store: Coolable, slots: Sequence[int], chunk_ids: Sequence[int], sequence: int) -> None:
        """Note that blobs in memory may leave it once the log has record `sequence`."""
        if self.stored_limit:
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
