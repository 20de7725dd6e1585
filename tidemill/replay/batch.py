"""One sampled batch as a learner receives it, still encoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tidemill.replay.columns import ItemColumns, Per, joined, per_chunk, per_item


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The encoded blocks of one column of a batch's chunks, one after the other.

    Attributes:
        data: The blocks, joined.
        sizes: Size of each chunk's block in bytes, [C]; empty for a RAW column.
    """

    data: bytes
    sizes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StoredSteps:
    """Amount of data that a server has stored for a table.

    Attributes:
        store_id: Identifies the count: a server that starts with nothing stored counts from 0 under a new number.
        env_steps: Agent decisions stored since the table was created or reset; a crash may take the newest ones.
        count_id: Identifies the table's part of it: a table that was reset or created again counts from 0 under another
            number. 0 if the server does not say.
    """

    store_id: int
    env_steps: int
    count_id: int = 0

    def continues(self, before: StoredSteps) -> bool:
        """Return True if this is the same count as before, which only a crash reduces."""
        is_same_table = self.count_id == before.count_id or 0 in (self.count_id, before.count_id)
        return self.store_id == before.store_id and is_same_table


@dataclass(frozen=True, slots=True)
class EpochPlace:
    """A place in the epochs of a table, see `EpochPlace` of the contract.

    Attributes:
        seed: Seed of the order of all epochs.
        number: Number of the epoch, from 0.
        slots: Slots of the table that the epoch goes through; 0 before it has begun.
        next: How many of them it has gone through.
    """

    seed: int
    number: int = 0
    slots: int = 0
    next: int = 0


@dataclass(slots=True, eq=False)
class Lease:
    """A batch of items that may be used up, before it is handed out: they go back to the table if its call ends.

    Attributes:
        settle: Tells the servers that the batch was handed out.
        is_void: Whether the call has ended, so that the items come again and the batch must not be handed out.
    """

    settle: Callable[[], None]
    is_void: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class SampledBatch(ItemColumns):
    """B items and the C chunks that hold them, each chunk once. `tidemill.replay.codec.decode` opens the columns.

    Attributes:
        first_rows: Row of each item's first step, counted over the steps of all chunks, int64 [B].
        step_counts: Steps of each chunk, int64 [C].
        params_versions: Version of the parameters that chose each chunk's last action, uint64 [C].
        slots: With a mirror, the slot of each chunk, int64 [C]; None without one.
        writes: Once its chunks are kept in a `TableMirror`, how often each one's slot was filled by then, int64 [C].
        sent: With a mirror, which of the chunks came with blocks, by position, int64; None without one.
        blocks: One entry for each column of the signature, in its order. With a mirror, of the chunks in `sent` alone.
        table_items: Items in the table when the batch was drawn.
        total_weight: Sum of sampler weights when the batch was drawn.
        stored: Decisions stored for the table since it was created or reset; of several shards, each by its name.
        limiter_diff: How far inserts were ahead of samples by the rate limiter's count, in samples; 0 without a ratio.
        epoch: If drawn by epochs, the place behind the batch, with the number of the batch's epoch.
        number: Of the batch in the call that brought it, from 1; 0 if it is not one call's.
        received_at: When it came, by `time.monotonic`, in seconds; of several shards, when the first part came.
        lease: What is to be settled when the batch is handed out; None if nothing is.
    """

    first_rows: NDArray[np.int64] = field(metadata=per_item("i8"))
    step_counts: NDArray[np.int64] = field(metadata=per_chunk("i8"))
    params_versions: NDArray[np.uint64] = field(metadata=per_chunk("u8"))
    slots: NDArray[np.int64] | None = field(default=None, metadata=per_chunk("i8"))
    writes: NDArray[np.int64] | None = field(default=None, metadata=per_chunk("i8"))
    sent: NDArray[np.int64] | None = None
    blocks: tuple[Blocks, ...]
    table_items: int
    total_weight: float
    stored: Mapping[str, StoredSteps]
    limiter_diff: float = 0.0
    epoch: EpochPlace | None = None
    number: int = 0
    received_at: float = 0.0
    lease: Lease | None = None

    @classmethod
    def joined(cls, parts: Sequence[SampledBatch]) -> SampledBatch:
        """Return the items and chunks of at least one part behind those of the others; the rest is as of the first."""
        rows = np.cumsum([0, *(int(part.step_counts.sum()) for part in parts)])
        placed = [replace(part, first_rows=part.first_rows + start) for part, start in zip(parts, rows, strict=False)]
        blocks = zip(*(part.blocks for part in parts), strict=True)
        return replace(
            parts[0],
            **joined(placed, Per.ITEM),
            **joined(placed, Per.CHUNK),
            sent=None,
            blocks=tuple(_joined_blocks(column) for column in blocks),
        )

    def needing(self, chunks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the items that have steps of some chunks [N], bool [B]."""
        ends = np.cumsum(self.step_counts)
        first = np.searchsorted(ends, self.first_rows, side="right")
        last = np.searchsorted(ends, self.first_rows + self.lengths - 1, side="right")
        before = np.concatenate(([0], np.cumsum(np.isin(np.arange(len(ends)), chunks))))
        needing: NDArray[np.bool_] = before[last + 1] > before[first]
        return needing

    def without_chunks(self, gone: NDArray[np.bool_]) -> SampledBatch:
        """Return the batch, which has no blocks, without some chunks [C] and the items that have steps of them."""
        items = ~self.needing(np.flatnonzero(gone))
        gone_rows = np.concatenate(([0], np.cumsum(np.where(gone, self.step_counts, 0))))
        places = np.searchsorted(np.cumsum(self.step_counts), self.first_rows, side="right")
        moved = replace(self, first_rows=self.first_rows - gone_rows[places])
        return moved.take(items).taken(Per.CHUNK, ~gone)

    @property
    def env_steps(self) -> int:
        """Agent decisions that the servers have stored for the table since it was created or reset."""
        return sum(stored.env_steps for stored in self.stored.values())


def _joined_blocks(column: Sequence[Blocks]) -> Blocks:
    return Blocks(b"".join(blocks.data for blocks in column), np.concatenate([blocks.sizes for blocks in column]))
