"""Compaction of the log: it copies the few records that are still needed and deletes old segments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from tidemill.arrays import Ints
from tidemill.logger import LateLogger
from tidemill.services.replay.chunks.store import ChunkStore
from tidemill.services.replay.log.blob_reader import BlobReader
from tidemill.services.replay.log.changes import ITEM
from tidemill.services.replay.log.commits import Commits
from tidemill.services.replay.log.journal import Journal
from tidemill.services.replay.log.logged_blocks import logged
from tidemill.services.replay.state.change_sink import NewChunks
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.table import Table


class Garbage:
    """Looks at the oldest segment only.

    What a segment says is undone by later ones, so that a segment must outlive every one before it: they are deleted
    from the old end, like those of a queue. What lives long in an old segment is written again at the new end.
    """

    def __init__(self, replay: ReplayState, journal: Journal, segment_bytes: int) -> None:
        """Watch the log of a state."""
        self._replay, self._journal, self._segment_bytes = replay, journal, segment_bytes

    @property
    def oldest(self) -> int | None:
        """The oldest segment, None if it still grows."""
        first = next(iter(self._journal.segment_sizes), None)
        return None if first == self._journal.segment else first

    @property
    def live_bytes(self) -> int:
        """Bytes in the log that are needed, about."""
        items = sum(table.size * ITEM.itemsize + table.items.payload_bytes for table in self._replay.tables)
        return self._replay.chunk_bytes + items

    @property
    def is_wasteful(self) -> bool:
        """Whether less than half of the log is needed, two segments set aside."""
        return self._journal.size_bytes > 2 * self.live_bytes + 2 * self._segment_bytes

    def is_needed(self, segment: int) -> bool:
        """True if a segment has a chunk or an item that is still stored."""
        counts = [logged(store).by_segment for store in self._replay.stores]
        counts += [table.items.by_segment for table in self._replay.tables]
        return any(each.count(segment) for each in counts)


def chunks_in(store: ChunkStore, segment: int) -> Ints:
    """Return the chunks that the log has in a segment, in the order they came."""
    blocks = logged(store)
    slots = np.flatnonzero(blocks.segments == segment)
    in_order: Ints = slots[np.argsort(blocks.ids[slots], kind="stable")]
    return in_order


def items_in(table: Table, segment: int) -> Ints:
    """Return the slots of the items that the log has in a segment."""
    return np.flatnonzero(table.items.segments[: table.items.used] == segment)


_MOVED_BYTES = 4 * 2**20
_MOVED_ITEMS = 65_536

_log = LateLogger()


class Compactor:
    """Carries out what `Garbage` finds, a little at a time, so that no call waits long."""

    def __init__(
        self,
        replay: ReplayState,
        journal: Journal,
        commits: Commits,
        blobs: BlobReader,
        segment_bytes: int,
        changed: Callable[[], None],
    ) -> None:
        """Clean the log of a state; `changed` is called after items were dropped because their bytes are corrupt."""
        self._replay, self._journal, self._commits, self._blobs = replay, journal, commits, blobs
        self._garbage = Garbage(replay, journal, segment_bytes)
        self._changed = changed

    async def compact(self) -> None:
        """Delete the oldest segments that are no longer needed; move what is left of them if the log is mostly waste.

        What was moved once is not moved again by the same call: where each segment begins with a long description of
        the state, a log may stay wasteful however often it is written again.

        Raises:
            Unavailable: An old segment could not be read.
        """
        newest = self._journal.segment
        while (segment := self._garbage.oldest) is not None and segment <= newest:
            if self._garbage.is_needed(segment):
                if not self._garbage.is_wasteful:
                    return
                await self._move(segment)
                if self._garbage.is_needed(segment):
                    return
            self._replay.log_removed()  # before segments go that say it came
            self._journal.delete(segment)
            self._blobs.forget(segment)
            await asyncio.sleep(0)

    async def _move(self, segment: int) -> None:
        """Write again, at the new end, what an old segment has that is needed."""
        for store in self._replay.stores:
            blocks, slots = logged(store), chunks_in(store, segment)
            while len(slots := slots[blocks.segments[slots] == segment]):  # some may have left meanwhile
                sizes = np.cumsum(store.sizes_of(slots))
                await self._move_chunks(store, slots[: max(1, int(np.searchsorted(sizes, _MOVED_BYTES)))])
        for table in self._replay.tables:
            while len(items := items_in(table, segment)[:_MOVED_ITEMS]):
                await self._commits.room()
                if table.dropped:
                    break
                self._journal.begin()
                items = items_in(table, segment)[:_MOVED_ITEMS]  # some may have left meanwhile
                self._journal.log_changes(self._replay.env_steps, None, [(table, items)])

    async def _move_chunks(self, store: ChunkStore, slots: Ints) -> None:
        blocks = logged(store)
        store.acquire(slots)  # before the first wait, in which their items may leave and others take the slots
        try:
            await self._commits.room()
            blobs, corrupt = await self._blobs.blobs(blocks, slots)
            whole = ~np.isin(slots, corrupt)
            self._journal.begin()
            moved = NewChunks(store, slots[whole], [blob for blob in blobs if blob is not None])
            where = self._journal.log_moved(self._replay.env_steps, moved)
            await self._commits.written(self._journal.sequence)
            blocks.relocate(moved.slots, where)
            self._replay.drop_chunks(store, corrupt)
            blocks.lose(corrupt)  # a call that still holds one keeps the segment no longer
        finally:
            store.release(slots)
        if len(corrupt):
            _log.error("corrupt chunks on disk, their items were dropped", chunks=len(corrupt))
            self._changed()
