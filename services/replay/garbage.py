"""Which segments of the log nobody needs, and which hold so little that their rest is better written again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.services.replay.chunk_store import ChunkStore
from tidemill.services.replay.journal import Journal
from tidemill.services.replay.log_blocks import LogBlocks
from tidemill.services.replay.log_changes import ITEM
from tidemill.services.replay.replay import Replay
from tidemill.services.replay.table import Table

Ints = NDArray[np.int64]


class Garbage:
    """Looks at the oldest segment only.

    What a segment says is undone by later ones, so that a segment must outlive every one before it: they are deleted
    from the old end, like those of a queue. What lives long in an old segment is written again at the new end.
    """

    def __init__(self, replay: Replay, journal: Journal, segment_bytes: int) -> None:
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
        items = sum(table.size for table in self._replay.tables)
        return self._replay.chunk_bytes + items * ITEM.itemsize

    @property
    def is_wasteful(self) -> bool:
        """Whether less than half of the log is needed, two segments set aside."""
        return self._journal.size_bytes > 2 * self.live_bytes + 2 * self._segment_bytes

    def is_needed(self, segment: int) -> bool:
        """Return whether a segment has a chunk or an item that is still there."""
        if any(len(chunks_in(store, segment)) for store in self._replay.stores):
            return True
        return any(len(items_in(table, segment)) for table in self._replay.tables)


def chunks_in(store: ChunkStore, segment: int) -> Ints:
    """Return the chunks that the log has in a segment, in the order they came."""
    blocks = store.blocks
    assert isinstance(blocks, LogBlocks), "a log keeps the blocks"
    held = store.held()
    slots = held[blocks.segments[held] == segment]
    in_order: Ints = slots[np.argsort(blocks.ids[slots], kind="stable")]
    return in_order


def items_in(table: Table, segment: int) -> Ints:
    """Return the slots of the items that the log has in a segment."""
    slots = table.items.live()
    there: Ints = slots[table.items.segments[slots] == segment]
    return there
