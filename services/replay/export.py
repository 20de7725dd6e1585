"""Items of a table as they are at one moment, read chunk by chunk while others write, sample and delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import compress

import numpy as np

from tidemill.arrays import Ints
from tidemill.errors import InvalidArgument, Reason, ResourceExhausted
from tidemill.logger import LateLogger
from tidemill.replay.batch import Blocks
from tidemill.replay.wire import pack_export_chunks, pack_export_items, pack_export_start
from tidemill.services.replay.chunks.store import in_parts
from tidemill.services.replay.lasting_work import finished
from tidemill.services.replay.log.blob_reader import BlobReader
from tidemill.services.replay.log.logged_blocks import logged
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.table import Table

_PART_BYTES = 4 * 2**20
"""Bytes of the chunks of one part as stored, and of the payloads of one part, unless it is one chunk or item."""

_PART_DECODED_BYTES = 32 * 2**20
"""Bytes that the chunks of one part decode to, unless it is one chunk."""

_PART_CHUNKS = 4096
_PART_ITEMS = 8192

_log = LateLogger()


class TableExport:
    """The items of a table that meet some conditions, as of its making; their chunks are held until `close`.

    Making one copies the items and the order of the chunks, and holds every chunk of the table; `choose` does the rest
    beside the event loop.
    """

    def __init__(
        self,
        table: Table,
        newest: int = 0,
        min_age: int = 0,
        max_age: int | None = None,
        since_s: float | None = None,
        until_s: float | None = None,
    ) -> None:
        """Take the table as it is now.

        Args:
            table: The table.
            newest: Only so many of the newest; 0 means all.
            min_age: Only those with at least so many inserted after them.
            max_age: Only those with at most so many inserted after them; None means any.
            since_s: Only those that came at this Unix time, in seconds, or later; None means any.
            until_s: Only those that came before this one; None means any.

        Raises:
            InvalidArgument: `max_age` is below `min_age`, or `until_s` below `since_s`.
        """
        if max_age is not None and max_age < min_age:
            raise InvalidArgument(f"max_age is {max_age}, must be at least min_age ({min_age})")
        self._table, self._store = table, table.store
        self._step_bytes = sum(column.step_bytes for column in table.config.signature)
        self._ages_of, self._newest = table.ages_of(min_age, max_age, since_s, until_s), newest
        self._copied = table.items.copy(), table.store.copy()
        self._held = [table.chunks()]
        self._store.acquire(self._held[0])
        self._sorting: asyncio.Future[Ints] | None = None
        self.holds = True
        """Whether the chunks are still held."""

    @property
    def items(self) -> int:
        """Number of items that were chosen."""
        return len(self._lengths)

    def close(self) -> asyncio.Future[Ints] | None:
        """Let go of the chunks; return the thread that still sorts copies, or None. May be called twice."""
        self.holds = False
        held, self._held = self._held, []
        for chunks in held:
            self._store.release(chunks)
        return None if self._sorting is None or self._sorting.done() else self._sorting

    async def choose(self) -> None:
        """Choose the items and put their chunks in order; the other chunks of the table are let go of.

        Raises:
            ResourceExhausted: The memory of chunks was needed for what actors append.
        """
        self._check()
        self._sorting = asyncio.get_running_loop().run_in_executor(None, self._sort, self._held[0])
        rest = await finished(self._sorting, "Export")  # a call may be cancelled, but not its thread
        self._check()
        self._held = [self.chunks, *in_parts(rest)]
        while len(self._held) > 1:
            self._store.release(self._held.pop())
            await asyncio.sleep(0)
        self._check()

    async def chunk_parts(self, replay: ReplayState, blobs: BlobReader | None) -> AsyncIterator[bytes]:
        """Yield the messages of the chunks in order of stream and position, the corrupt ones left out.

        Args:
            replay: The state, from which items that need corrupt chunks are dropped.
            blobs: Reads what is not in memory; None if everything is in memory.

        Raises:
            NotFound: The table was dropped, and the log has deleted chunks of it.
            ResourceExhausted: The memory of chunks was needed for what actors append.
            Unavailable: The log could not be read.
        """
        left_out = False
        for part in self._parts:
            self._check()
            blocks, corrupt = await self._read(self.chunks[part], self.step_counts[part], blobs)
            if len(corrupt):
                self._check()  # others may have the slots of chunks that were let go of meanwhile
                self._table.check_there()  # a dropped one's chunks may be gone with their segments
                dropped = replay.drop_chunks(self._store, corrupt)
                _log.error("corrupt chunks on disk, their items were dropped", chunks=len(corrupt), items=dropped)
            self._is_corrupt[part] = gone = np.isin(self.chunks[part], corrupt)
            continues = self._continues[part].copy()
            continues[1:] &= ~gone[:-1]
            continues[0] &= not left_out
            left_out = bool(gone[-1])
            kept = self.chunks[part][~gone]
            if len(kept):
                step_counts, params_versions = self._store.step_counts(kept), self._store.params_versions(kept)
                yield pack_export_chunks(step_counts, params_versions, continues[~gone], blocks)

    def item_parts(self) -> Iterator[bytes]:
        """Yield, after the chunks, the messages of the items in the order of their insertion.

        Those that need a corrupt chunk are left out.
        """
        ends = np.cumsum(self.step_counts)
        corrupt_before = np.concatenate(([0], np.cumsum(self._is_corrupt)))
        rows_gone = np.concatenate(([0], np.cumsum(np.where(self._is_corrupt, self.step_counts, 0))))
        count = max(1, min(_PART_ITEMS, _PART_BYTES // max(self._payload_bytes, 1)))
        for start in range(0, self.items, count):
            part = slice(start, start + count)
            first_rows, lengths = self._first_rows[part], self._lengths[part]
            first = np.searchsorted(ends, first_rows, side="right")
            last = np.searchsorted(ends, first_rows + lengths - 1, side="right")
            kept = corrupt_before[last + 1] == corrupt_before[first]
            yield pack_export_items(
                first_rows=(first_rows - rows_gone[first])[kept],
                lengths=lengths[kept],
                priorities=self._priorities[part][kept],
                payloads=list(compress(self._payloads[part], kept.tolist())),
                ages=self._ages[part][kept],
                times_sampled=self._times_sampled[part][kept],
            )

    def _sort(self, held: Ints) -> Ints:
        """Find the items, oldest first, and their chunks by stream and position; return which of the held are others.

        Only copies are read: the chunks may be let go of meanwhile.
        """
        if not self.holds:  # it was closed while other threads were busy
            return held
        (items, store), (youngest, oldest) = self._copied, self._ages_of
        slots = items.oldest_first()
        ages = items.ages(slots)
        slots = slots[(ages >= youngest) & (ages <= oldest)]
        slots = slots[-self._newest :] if self._newest else slots
        self.chunks, places = store.in_order(store.spans(items.first_chunks[slots].astype(np.int64), items.ends(slots)))
        self.step_counts = store.step_counts(self.chunks)
        starts = np.cumsum(self.step_counts) - self.step_counts
        self._first_rows = starts[places[: len(slots)]] + items.offsets[slots]
        self._lengths = items.lengths[slots].astype(np.int64)
        self._priorities, self._payloads = items.priorities[slots], items.payloads(slots)
        self._payload_bytes = max(map(len, self._payloads), default=0)
        self._ages, self._times_sampled = items.ages(slots), items.times_sampled[slots]
        streams, numbers = store.streams_of(self.chunks), store.numbers_of(self.chunks)
        self._continues = np.zeros(len(self.chunks), dtype=np.bool_)
        self._continues[1:] = (np.diff(streams) == 0) & (np.diff(numbers) == 1)
        self._is_corrupt = np.zeros(len(self.chunks), dtype=np.bool_)
        self._parts = self._cut(store.sizes_of(self.chunks))
        del self._copied
        return np.setdiff1d(held, self.chunks, assume_unique=True)

    def _cut(self, sizes: Ints) -> list[slice]:
        """Return the chunks of each message; `sizes` are those of all, as stored."""
        decoded = self.step_counts * self._step_bytes
        parts, start = [], 0
        stored_ends, decoded_ends = np.cumsum(sizes), np.cumsum(decoded)
        while start < len(sizes):
            stored, opened = (int(ends[start - 1]) if start else 0 for ends in (stored_ends, decoded_ends))
            fitting = min(
                int(np.searchsorted(stored_ends, stored + _PART_BYTES, side="right")),
                int(np.searchsorted(decoded_ends, opened + _PART_DECODED_BYTES, side="right")),
                start + _PART_CHUNKS,
            )
            parts.append(slice(start, max(fitting, start + 1)))
            start = parts[-1].stop
        return parts

    def _check(self) -> None:
        if not self.holds:
            raise ResourceExhausted(
                "the memory that an export held was needed for what actors append: export fewer items (newest, "
                "max_age), raise max_memory_mib, or give the server a folder",
                reason=Reason.MEMORY_FULL,
            )

    async def _read(self, chunks: Ints, step_counts: Ints, blobs: BlobReader | None) -> tuple[tuple[Blocks, ...], Ints]:
        """Return the blocks of chunks [C], and which of the chunks are corrupt and have none."""
        if blobs is None:
            return self._store.blocks.read(chunks, step_counts), np.zeros(0, dtype=np.int64)
        blocks = logged(self._store)
        found, corrupt = await blobs.blobs(blocks, chunks)
        self._check()
        kept = ~np.isin(chunks, corrupt)
        if not kept.any():
            return (), corrupt
        whole = [blob for blob in found if blob is not None]
        return blocks.cut(chunks[kept], whole, step_counts[kept]), corrupt


async def exported_parts(
    table: Table, export: TableExport, replay: ReplayState, blobs: BlobReader | None
) -> AsyncIterator[bytes]:
    """Yield the messages of an export; raises like `TableExport.choose` and `chunk_parts`."""
    await export.choose()
    yield pack_export_start(table.config, export.items, len(export.chunks), int(export.step_counts.sum()))
    async for part in export.chunk_parts(replay, blobs):
        yield part
    for part in export.item_parts():
        yield part
