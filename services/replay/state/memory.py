"""Memory budget of a server: its size, the data stored in it, and what is evicted first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from tidemill import container_limits
from tidemill.arrays import Ints
from tidemill.errors import InvalidArgument, Reason, ResourceExhausted
from tidemill.services.replay.chunks.store import RECORD_BYTES, ChunkStore, in_parts
from tidemill.services.replay.state.append import AppendPlan, AppendSession
from tidemill.services.replay.state.streams import Epoch, StreamRegistry
from tidemill.services.replay.tables.table import Table
from tidemill.types import Signature


def default_budget_bytes(shards: int, container_bytes: int | None) -> int:
    """Return three quarters of the memory of this container, or the machine's half divided among its shards.

    Args:
        shards: Replay servers that may be on this machine.
        container_bytes: The container's limit; None without one.
    """
    machine = container_limits.machine_memory_bytes()
    if container_bytes is not None and container_bytes < machine:
        return container_bytes // 4 * 3
    return machine // 2 // shards


class EvictableBlobs(Protocol):
    """Storage of blobs that can be evicted."""

    def is_resident(self, slot: int, chunk_id: int) -> bool:
        """True if a chunk's blob is in memory and the slot still belongs to that chunk."""
        ...

    def evict(self, slot: int) -> int:
        """Leave a blob to the log; return the bytes that became free."""
        ...


class HeldChunks(Protocol):
    """Chunks that are kept for a caller, whatever becomes of the items that need them."""

    def close(self) -> asyncio.Future[Any] | None:
        """Let go of them; return the thread that still works for the caller, or None."""
        ...


class LeavingChunks:
    """Chunks of a table that was emptied, which are let go of part by part."""

    def __init__(self, store: ChunkStore, chunks: Ints) -> None:
        """Take chunks [N] that are held once for it."""
        self._store, self._parts = store, in_parts(chunks)

    def release_part(self) -> bool:
        """Let go of a part; return whether there was one."""
        if self._parts:
            self._store.release(self._parts.pop())
            return True
        return False

    def close(self) -> None:
        """Let go of all that is left."""
        while self.release_part():
            pass


_H = TypeVar("_H", bound=HeldChunks)

MAX_HOLDERS = 4
"""Callers for whom chunks are held at a time: each also has the numbers of its items in memory, some 60 bytes each."""


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
        self._queue: deque[_Entry] = deque()  # oldest first
        self._kept: deque[_Entry] = deque()  # before it: those that a sweep has kept so far
        self._sweeps = False
        self._sweep_at = _FIRST_SWEEP
        self.size_bytes = 0

    @property
    def room_bytes(self) -> int:
        """Bytes that may still be stored in memory."""
        return self.stored_limit - self.size_bytes - self.beside_bytes if self.stored_limit else _NO_LIMIT

    def excess_bytes(self, coming: int) -> int:
        """Return the bytes beyond the limit of stored data, blobs aside, with `coming` more; 0 if they fit."""
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
                f"no memory for a message of {size_bytes} bytes: messages of {self.message_bytes} bytes already wait, "
                f"at most {self.share_limit} may (a quarter of max_memory_mib); retry later",
                reason=Reason.MEMORY_FULL,
            )
        self.message_bytes += size_bytes

    def came(self, size_bytes: int) -> None:
        """Count a blob that came into memory."""
        self.size_bytes += size_bytes

    def left(self, size_bytes: int) -> None:
        """Count a blob that was freed."""
        self.size_bytes -= size_bytes

    def mark_evictable(
        self, store: EvictableBlobs, slots: Sequence[int], chunk_ids: Sequence[int], sequence: int
    ) -> None:
        """Note that blobs in memory may leave it once the log has record `sequence`."""
        if self.stored_limit:
            self._queue.extend((store, *chunk, sequence) for chunk in zip(slots, chunk_ids, strict=True))
            self._sweep(_SWEPT * len(slots))
            self._shrink()

    def written(self, sequence: int) -> None:
        """Note that the log has every record up to one."""
        self._written = sequence
        self._shrink()

    def _shrink(self) -> None:
        while self.room_bytes < 0 and (queue := self._kept or self._queue) and queue[0][3] <= self._written:
            store, slot, chunk_id, _ = queue.popleft()
            if store.is_resident(slot, chunk_id):
                self.size_bytes -= store.evict(slot)

    def _sweep(self, most: int) -> None:
        """Drop the entries that freed blobs leave behind, looking at so many at a time."""
        queue = self._queue
        if not self._sweeps and len(queue) <= self._sweep_at:
            return
        self._sweeps = True
        for _ in range(min(most, len(queue))):
            entry = queue.popleft()
            if entry[0].is_resident(entry[1], entry[2]):
                self._kept.append(entry)
        if not queue:
            self._queue, self._kept, self._sweeps = self._kept, queue, False
            self._sweep_at = max(2 * len(self._queue), _FIRST_SWEEP)


_Entry = tuple[EvictableBlobs, int, int, int]  # store, slot, chunk, sequence
_FIRST_SWEEP = 4096
_SWEPT = 4  # entries that a sweep looks at for each new one
_NO_LIMIT = 2**62


class StoredMemory:
    """Holds all that is stored within the budget: tables give up items for what comes, and streams have their share.

    Attributes:
        evictions: Items that tables gave up.
        held: What is kept for callers.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        tables: Mapping[str, Table],
        stores: Mapping[Signature, ChunkStore],
        streams: StreamRegistry,
        *,
        durable: bool,
    ) -> None:
        """Watch over tables, chunks and streams; with a log (`durable`) chunks leave memory by themselves."""
        self._budget, self._tables, self._stores, self._streams = budget, tables, stores, streams
        self._durable = durable
        self.evictions = 0
        self.held: set[HeldChunks] = set()
        self._holders = 0

    def count(self) -> None:
        """Count everything that is stored in the budget, except chunks that a log holds."""
        chunks = sum(store.record_bytes for store in self._stores.values())
        if not self._durable:
            chunks += sum(store.size_bytes for store in self._stores.values())
        items = sum(table.items.memory_bytes for table in self._tables.values())
        self._budget.beside_bytes = chunks + items + self._streams.memory_bytes

    def make_room(self, session: AppendSession, planned: AppendPlan) -> list[Table]:
        """Make room for a message; return the tables that gave up items for it.

        Raises:
            ResourceExhausted: there is none, or the streams have more than their share.
            InvalidArgument: there would be none in an empty server.
        """
        if not planned.chunks:
            return []
        size = 0 if self._durable else sum(planned.sizes)
        if size and self._budget.share_limit:
            if size > self._budget.share_limit:
                raise InvalidArgument(
                    f"a message has {size} bytes of chunks, must have at most {self._budget.share_limit} (a quarter of "
                    "max_memory_mib): send smaller messages, or raise max_memory_mib",
                    reason=Reason.TOO_LARGE,
                )
            self._check_tails(session.epoch, size)
        size += RECORD_BYTES * len(planned.chunks)
        if not self._excess(session, planned, size):
            return []
        self.count()  # items may have left since
        self._let_go(session, planned, size)
        pressed = [
            table
            for table in sorted(session.tables, key=lambda table: -table.held_bytes)
            if self._press(table, session, planned, size)
        ]
        if excess := self._excess(session, planned, size):
            raise ResourceExhausted(
                f"no memory for {size} bytes of chunks: with them, streams and tables that this call does not name "
                f"have {excess} bytes more than the {self._budget.stored_limit} that may be stored (half of "
                "max_memory_mib); raise it, or lower max_items of other tables",
                reason=Reason.MEMORY_FULL,
            )
        return pressed

    @contextmanager
    def holding(self, choose: Callable[[], _H]) -> Iterator[_H]:
        """Give the block the chunks that are chosen for a caller, and let go of them behind it.

        Raises:
            ResourceExhausted: `MAX_HOLDERS` callers have some, whether they read on or not, or their threads work.
        """
        if self._holders == MAX_HOLDERS:
            raise ResourceExhausted(
                f"{MAX_HOLDERS} exports are under way, the maximum; retry when one has ended",
                reason=Reason.TOO_MANY_EXPORTS,
            )
        chosen = choose()
        self._holders += 1
        self.held.add(chosen)
        try:
            yield chosen
        finally:
            self.held.discard(chosen)
            if (working := chosen.close()) is not None:
                working.add_done_callback(self._ended)
            else:
                self._ended()

    def leaving(self, store: ChunkStore, chunks: Ints) -> LeavingChunks:
        """Take chunks [N] of a table that was emptied, and let go of them at once if memory is needed before."""
        leaving = LeavingChunks(store, chunks)
        self.held.add(leaving)
        return leaving

    def _ended(self, _: object = None) -> None:
        self._holders -= 1

    def _let_go(self, session: AppendSession, planned: AppendPlan, size: int) -> None:
        """Free what is held for callers while there is no room: evicting the items of these chunks would free nothing.

        What is on its way out goes before the chunks of an export, which ends by it.
        """
        for held in sorted(self.held, key=lambda each: not isinstance(each, LeavingChunks)):
            if not self._excess(session, planned, size):
                return
            self.held.remove(held)
            held.close()
            self.count()

    def _press(self, table: Table, session: AppendSession, planned: AppendPlan, size: int) -> bool:
        """Evict items of a table while there is no room for a message; return whether any were evicted."""
        evictions, least = self.evictions, 1
        while (excess := self._excess(session, planned, size)) and table.held_count:
            asked = max(excess, least)
            self.evictions += table.give_up(asked)
            least = 2 * asked  # others may hold the same chunks: it must come to an end all the same
            self.count()
        return self.evictions > evictions

    def _excess(self, session: AppendSession, planned: AppendPlan, size: int) -> int:
        """Return by how much a message would go beyond what may be stored; `size` is that of its chunks."""
        for batch in planned.items:
            size += session.tables[batch.table_index].items.bytes_for(batch.payloads, len(batch.lengths))
        return self._budget.excess_bytes(size)

    def _check_tails(self, epoch: Epoch, size: int) -> None:
        """Hold the newest chunks of all streams within their share, and let idle ones go first.

        An actor whose streams hold less than their part is not refused for what others hold.
        """
        share = self._budget.share_limit
        while (held := sum(store.tail_bytes for store in self._stores.values())) + size > share:
            if epoch.tail_bytes + size <= share // self._streams.actors:
                return
            if not self._streams.forget_idle():
                raise ResourceExhausted(
                    f"no memory for {size} bytes of chunks: the newest chunks of all streams, kept for future items, "
                    f"have {held} bytes, at most {share} are allowed (a quarter of max_memory_mib); raise it, or "
                    "connect fewer actors",
                    reason=Reason.MEMORY_FULL,
                )
