"""The blocks of chunks that a log has: in memory as long as there is room, and in the log's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.replay.batch import Blocks
from tidemill.services.replay.chunks.blocks import cut_raw
from tidemill.services.replay.chunks.store import ChunkStore
from tidemill.services.replay.state.memory import MemoryBudget
from tidemill.services.replay.tables.segment_counts import SegmentCounts
from tidemill.types import Codec, Signature

_FIRST_CAPACITY = 256
_NO_SEGMENT = 0  # the first is 1: reading a chunk of this one finds no file, as if the chunk were corrupt


@dataclass(frozen=True, slots=True, eq=False)
class Locations:
    """Locations of blobs in the log.

    Attributes:
        ids: Identity of each, int64 [N].
        segments: Number of the segment, int64 [N].
        offsets: Where the checksum before the blob starts in the segment, int64 [N].
        sizes: Bytes of the blob alone, int64 [N].
    """

    ids: Ints
    segments: Ints
    offsets: Ints
    sizes: Ints

    def part(self, picked: NDArray[np.generic] | slice) -> Locations:
        """Return some of them."""
        return Locations(self.ids[picked], self.segments[picked], self.offsets[picked], self.sizes[picked])


class LoggedBlocks:
    """Keeps a chunk's blocks as one *blob*: its RAW blocks, then its LZ4 blocks; see `BlockStore`.

    A blob is in memory from its arrival until the budget asks for its room; then only the log has it.
    """

    def __init__(self, signature: Signature, table: int, budget: MemoryBudget) -> None:
        """Create an empty store for streams of one signature; `table` is the number of a table with it."""
        self.table = table
        self._raw_columns = [i for i, column in enumerate(signature) if column.codec is Codec.RAW]
        self._packed_columns = [i for i, column in enumerate(signature) if column.codec is Codec.LZ4]
        widths = [signature[i].step_bytes for i in self._raw_columns]
        self._raw_starts = [sum(widths[:i]) for i in range(len(widths) + 1)]
        self._budget = budget
        self._data: list[bytes | None] = []
        self.packed_sizes = np.zeros((_FIRST_CAPACITY, len(self._packed_columns)), dtype=np.int32)
        self.ids = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self.segments = np.zeros(_FIRST_CAPACITY, dtype=np.int32)  # `_NO_SEGMENT` where there is no chunk
        self.by_segment = SegmentCounts()
        self._offsets = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._sizes = np.zeros(_FIRST_CAPACITY, dtype=np.int64)

    def put(self, slot: int, blocks: Sequence[bytes]) -> None:
        """Keep a chunk's blocks; slots must first be used in order."""
        if slot == len(self._data):
            self._data.append(None)
            self._cover(slot + 1)
        data = b"".join([blocks[i] for i in (*self._raw_columns, *self._packed_columns)])
        self._data[slot] = data
        self._sizes[slot] = len(data)
        self._budget.came(len(data))
        self.packed_sizes[slot] = [len(blocks[i]) for i in self._packed_columns]

    def drop(self, slots: Ints) -> None:
        """Forget the blocks of chunks [N]."""
        for slot in slots.tolist():
            data, self._data[slot] = self._data[slot], None
            if data is not None:
                self._budget.left(len(data))
        self.by_segment.remove_each(self.segments[slots])
        self.segments[slots] = _NO_SEGMENT

    def read(self, slots: Ints, step_counts: Ints) -> tuple[Blocks, ...]:
        """Return the blocks of chunks [N], all in memory, side by side, one entry for each column."""
        return self.cut(slots, self.blobs(slots), step_counts)

    def blobs(self, slots: Ints) -> list[bytes]:
        """Return the blobs of chunks [N], all in memory."""
        return [data for slot in slots.tolist() if (data := self._data[slot]) is not None]

    def peek(self, slots: Ints) -> list[bytes | None]:
        """Return the blob of each chunk [N], None where only the log has it."""
        return [self._data[slot] for slot in slots.tolist()]

    def locations(self, slots: Ints) -> Locations:
        """Return the locations of chunks [N] in the log."""
        segments = self.segments[slots].astype(np.int64)
        return Locations(self.ids[slots], segments, self._offsets[slots], self._sizes[slots])

    def locate(self, slots: Ints, where: Locations, sequence: int) -> None:
        """Note in which place of one segment the log will have new chunks [N], once it has written a record.

        Some may be free again.
        """
        self.ids[slots], self.segments[slots], self._offsets[slots] = where.ids, where.segments, where.offsets
        picked = slots.tolist()
        freed = [slot for slot in picked if self._data[slot] is None]
        if freed:
            self.segments[freed] = _NO_SEGMENT
        if len(freed) < len(picked):
            self.by_segment.add(int(where.segments[0]), len(picked) - len(freed))
        self._budget.mark_evictable(self, picked, where.ids.tolist(), sequence)

    def relocate(self, slots: Ints, where: Locations) -> None:
        """Note that the log has chunks [N] at another place now."""
        self.by_segment.remove_each(self.segments[slots])
        self.by_segment.add_each(where.segments)
        self.segments[slots], self._offsets[slots] = where.segments, where.offsets

    def lose(self, slots: Ints) -> None:
        """Note that the log has corrupt chunks [N] nowhere, so that they belong to none of its segments."""
        self.by_segment.remove_each(self.segments[slots])
        self.segments[slots], self._offsets[slots] = _NO_SEGMENT, 0

    def restore(self, slots: Ints, where: Locations, packed_sizes: Ints) -> None:
        """Add chunks 0 .. N - 1 from before the restart, whose blobs are only in the log."""
        self._cover(len(slots))
        self._data = [None] * len(slots)
        self.ids[slots], self.segments[slots], self._offsets[slots] = where.ids, where.segments, where.offsets
        self.by_segment.add_each(where.segments)
        self._sizes[slots], self.packed_sizes[slots] = where.sizes, packed_sizes

    def keep(self, slot: int, data: bytes) -> None:
        """Keep the blob of a restored chunk in memory."""
        self._data[slot] = data
        self._budget.came(len(data))

    def mark_evictable(self, slots: Ints) -> None:
        """Note which restored chunks may leave memory, those with lower identities first."""
        oldest_first = slots[np.argsort(self.ids[slots], kind="stable")]
        self._budget.mark_evictable(self, oldest_first.tolist(), self.ids[oldest_first].tolist(), 0)

    def is_resident(self, slot: int, chunk_id: int) -> bool:
        """True if a chunk's blob is in memory and the slot still belongs to that chunk."""
        return self._data[slot] is not None and int(self.ids[slot]) == chunk_id

    def evict(self, slot: int) -> int:
        """Leave a blob to the log; return the bytes that became free."""
        self._data[slot] = None
        return int(self._sizes[slot])

    def cut(self, slots: Ints, blobs: list[bytes], step_counts: Ints) -> tuple[Blocks, ...]:
        """Return the blocks in blobs of chunks [N] side by side, one entry for each column."""
        blocks: dict[int, Blocks] = {}
        raw_ends = step_counts * self._raw_starts[-1]
        starts = raw_ends.tolist()
        if self._raw_columns:
            raws = [blob[:end] for blob, end in zip(blobs, starts, strict=True)]
            for i, data in zip(self._raw_columns, cut_raw(raws, step_counts, self._raw_starts), strict=True):
                blocks[i] = Blocks(data, np.empty(0, dtype=np.int64))
        sizes = self.packed_sizes[slots].astype(np.int64)
        ends = raw_ends[:, None] + np.cumsum(sizes, axis=1)
        for column, i in enumerate(self._packed_columns):
            stops = ends[:, column].tolist()
            parts = [blob[a:b] for blob, a, b in zip(blobs, starts, stops, strict=True)]
            blocks[i] = Blocks(b"".join(parts), sizes[:, column])
            starts = stops
        return tuple(blocks[i] for i in range(len(blocks)))

    def _cover(self, count: int) -> None:
        capacity = len(self.ids)
        while capacity < count:
            capacity *= 2
        if capacity > len(self.ids):
            for name in ("packed_sizes", "ids", "segments", "_offsets", "_sizes"):
                old = getattr(self, name)
                new = np.zeros((capacity, *old.shape[1:]), dtype=old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)


def logged(store: ChunkStore) -> LoggedBlocks:
    """Return the blocks of a store whose chunks a log has as well. TypeError: they are in memory only."""
    if not isinstance(store.blocks, LoggedBlocks):
        raise TypeError("no log keeps the blocks of this store")
    return store.blocks
