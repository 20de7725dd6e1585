"""A batch drawn from a table: the items first, then the blocks they lie in, which may have to be read from disk."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tidemill.replay.sampling.batch import Blocks, SampledBatch
from tidemill.services.replay.chunks.mirror import ChunkMirror
from tidemill.services.replay.chunks.store import ChunkStore
from tidemill.services.replay.tables.items import Items

Ints = NDArray[np.int64]

_ITEM_BYTES = 40  # of the numbers of an item


@dataclass(frozen=True, slots=True, eq=False)
class SampledItems:
    """B items drawn from a table and the C chunks they lie in, which are held until `release`.

    Attributes:
        keys: uint64 [B].
        probabilities: float64 [B].
        first_rows: int64 [B].
        lengths: int64 [B].
        payloads: One for each item, or empty.
        chunks: Slots of the chunks, int64 [C].
        step_counts: int64 [C].
        params_versions: uint64 [C].
        table_items: Items in the table at the draw.
        total_weight: Sum of sampler weights at the draw.
        ages: Items inserted after each, int64 [B].
        times_sampled: How often each was sampled, this draw included, uint32 [B].
        priorities: Priority of each, float64 [B].
    """

    keys: NDArray[np.uint64]
    probabilities: NDArray[np.float64]
    first_rows: Ints
    lengths: Ints
    payloads: tuple[bytes, ...]
    chunks: Ints
    step_counts: Ints
    params_versions: NDArray[np.uint64]
    table_items: int
    total_weight: float
    ages: Ints
    times_sampled: NDArray[np.uint32]
    priorities: NDArray[np.float64]

    def size_bytes(self, store: ChunkStore, mirror: ChunkMirror | None = None) -> int:
        """Return about how many bytes the batch has with the blocks that its caller lacks, as a message."""
        sent = self.chunks if mirror is None else self.chunks[mirror.missing(self.chunks)]
        return store.bytes_of(sent) + sum(map(len, self.payloads)) + _ITEM_BYTES * len(self.keys)

    def acquire(self, store: ChunkStore) -> None:
        """Keep the chunks from being freed, whatever happens to the items."""
        store.acquire(self.chunks)

    def release(self, store: ChunkStore) -> None:
        """Let go of the chunks."""
        store.release(self.chunks)

    def with_blocks(
        self, blocks: tuple[Blocks, ...], slots: Ints | None = None, sent: Ints | None = None
    ) -> SampledBatch:
        """Return the whole batch; the server adds what it has stored when it sends it.

        Args:
            blocks: Blocks of the chunks, or with a mirror of those in `sent`.
            slots: With a mirror, where the caller keeps each chunk, [C].
            sent: With a mirror, which chunks it does not have, by position.
        """
        return SampledBatch(
            keys=self.keys,
            probabilities=self.probabilities,
            first_rows=self.first_rows,
            lengths=self.lengths,
            payloads=self.payloads,
            step_counts=self.step_counts,
            params_versions=self.params_versions,
            blocks=blocks,
            table_items=self.table_items,
            total_weight=self.total_weight,
            stored={},
            slots=slots,
            sent=sent,
            ages=self.ages,
            times_sampled=self.times_sampled.astype(np.int64),
            priorities=self.priorities,
        )

    def overlapping(self, chunks: Ints) -> NDArray[np.bool_]:
        """Return which items [B] need one of some chunks [N]."""
        ends = np.cumsum(self.step_counts)
        first = np.searchsorted(ends, self.first_rows, side="right")
        last = np.searchsorted(ends, self.first_rows + self.lengths - 1, side="right")
        before = np.concatenate(([0], np.cumsum(np.isin(self.chunks, chunks))))
        overlapping: NDArray[np.bool_] = before[last + 1] > before[first]
        return overlapping

    def without(self, chunks: Ints) -> SampledItems:
        """Return the batch without some chunks [N] and the items that need them."""
        items, stays = ~self.overlapping(chunks), ~np.isin(self.chunks, chunks)
        gone_rows = np.concatenate(([0], np.cumsum(np.where(stays, 0, self.step_counts))))
        ends = np.cumsum(self.step_counts)
        places = np.searchsorted(ends, self.first_rows, side="right")
        payloads = tuple(p for p, is_kept in zip(self.payloads, items, strict=True) if is_kept) if self.payloads else ()
        return replace(
            self,
            keys=self.keys[items],
            probabilities=self.probabilities[items],
            first_rows=(self.first_rows - gone_rows[places])[items],
            lengths=self.lengths[items],
            ages=self.ages[items],
            times_sampled=self.times_sampled[items],
            priorities=self.priorities[items],
            payloads=payloads,
            chunks=self.chunks[stays],
            step_counts=self.step_counts[stays],
            params_versions=self.params_versions[stays],
        )

    def concat(self, other: SampledItems) -> SampledItems:
        """Return the batch with the items of another draw behind its own."""
        payloads: tuple[bytes, ...] = ()
        if self.payloads or other.payloads:
            payloads = (self.payloads or (b"",) * len(self.keys)) + (other.payloads or (b"",) * len(other.keys))
        return replace(
            self,
            keys=np.concatenate((self.keys, other.keys)),
            probabilities=np.concatenate((self.probabilities, other.probabilities)),
            first_rows=np.concatenate((self.first_rows, other.first_rows + int(self.step_counts.sum()))),
            lengths=np.concatenate((self.lengths, other.lengths)),
            ages=np.concatenate((self.ages, other.ages)),
            times_sampled=np.concatenate((self.times_sampled, other.times_sampled)),
            priorities=np.concatenate((self.priorities, other.priorities)),
            payloads=payloads,
            chunks=np.concatenate((self.chunks, other.chunks)),
            step_counts=np.concatenate((self.step_counts, other.step_counts)),
            params_versions=np.concatenate((self.params_versions, other.params_versions)),
        )


def locate(
    items: Items, store: ChunkStore, slots: Ints, probabilities: NDArray[np.float64], table: tuple[int, float]
) -> SampledItems:
    """Return drawn items and where they lie.

    Args:
        items: The items of the table.
        store: Their chunks.
        slots: The items drawn, [B].
        probabilities: With which each was chosen, [B].
        table: Items in the table and sum of sampler weights at the draw.
    """
    spans = store.spans(items.first_chunks[slots].astype(np.int64), items.ends(slots))
    chunks, places = store.in_order(spans)
    step_counts = store.step_counts(chunks)
    starts = np.cumsum(step_counts) - step_counts
    return SampledItems(
        keys=items.keys(slots),
        probabilities=probabilities,
        first_rows=starts[places[: len(slots)]] + items.offsets[slots],
        lengths=items.lengths[slots].astype(np.int64),
        payloads=items.payloads(slots),
        chunks=chunks,
        step_counts=step_counts,
        params_versions=store.params_versions(chunks),
        table_items=table[0],
        total_weight=table[1],
        ages=items.ages(slots),
        times_sampled=items.times_sampled[slots],
        priorities=items.priorities[slots],
    )
