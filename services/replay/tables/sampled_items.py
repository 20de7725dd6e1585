"""A batch drawn from a table: the items first, then the blocks they lie in, which may have to be read from disk."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.replay.batch import Blocks, SampledBatch
from tidemill.services.replay.chunks.mirror import ChunkMirror
from tidemill.services.replay.chunks.store import ChunkStore
from tidemill.services.replay.tables.items import Items

_ITEM_BYTES = 40  # of the numbers of an item


@dataclass(frozen=True, slots=True, eq=False)
class SampledItems:
    """Items drawn from a table and the C chunks they lie in, which are held until `release`.

    Attributes:
        batch: The items, without blocks and without what the server adds when it sends them.
        chunks: Slots of the chunks, int64 [C].
        eras: Era of the table in which each item was drawn, see `Table`, int64 [B].
    """

    batch: SampledBatch
    chunks: Ints
    eras: Ints

    @property
    def ages(self) -> Ints:
        """Items inserted after each, int64 [B]."""
        assert self.batch.ages is not None
        return self.batch.ages

    def size_bytes(self, store: ChunkStore, mirror: ChunkMirror | None = None) -> int:
        """Return about how many bytes the batch has with the blocks that its caller lacks, as a message."""
        sent = self.chunks if mirror is None else self.chunks[mirror.missing(self.chunks)]
        return store.bytes_of(sent) + sum(map(len, self.batch.payloads)) + _ITEM_BYTES * len(self.batch.keys)

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
        return replace(self.batch, blocks=blocks, slots=slots, sent=sent)

    def without(self, chunks: Ints) -> SampledItems:
        """Return the batch without some chunks [N] and the items that need them."""
        gone = np.isin(self.chunks, chunks)
        kept = ~self.batch.needing(np.flatnonzero(gone))
        return SampledItems(self.batch.without_chunks(gone), self.chunks[~gone], self.eras[kept])

    def concat(self, other: SampledItems) -> SampledItems:
        """Return the batch with the items of another draw behind its own."""
        batch = SampledBatch.joined((self.batch, other.batch))
        chunks, eras = np.concatenate((self.chunks, other.chunks)), np.concatenate((self.eras, other.eras))
        return SampledItems(batch, chunks, eras)


def locate(
    items: Items,
    store: ChunkStore,
    slots: Ints,
    probabilities: NDArray[np.float64],
    table: tuple[int, float],
    era: int = 0,
    table_s: NDArray[np.float32] | None = None,
) -> SampledItems:
    """Return drawn items and where they lie.

    Args:
        items: The items of the table.
        store: Their chunks.
        slots: The items drawn, [B].
        probabilities: With which each was chosen, [B].
        table: Items in the table and sum of sampler weights at the draw.
        era: Era of the table, if the batch is to be settled.
        table_s: How long each has been in the table, in seconds, [B]; None for a batch that does not say so.
    """
    spans = store.spans(items.first_chunks[slots].astype(np.int64), items.ends(slots))
    chunks, places = store.in_order(spans)
    step_counts = store.step_counts(chunks)
    starts = np.cumsum(step_counts) - step_counts
    batch = SampledBatch(
        keys=items.keys(slots),
        probabilities=probabilities,
        first_rows=starts[places[: len(slots)]] + items.offsets[slots],
        lengths=items.lengths[slots].astype(np.int64),
        payloads=items.payloads(slots),
        step_counts=step_counts,
        params_versions=store.params_versions(chunks),
        blocks=(),
        table_items=table[0],
        total_weight=table[1],
        stored={},
        ages=items.ages(slots),
        times_sampled=items.times_sampled[slots].astype(np.int64),
        priorities=items.priorities[slots],
        table_s=table_s,
    )
    return SampledItems(batch, chunks, np.full(len(slots), era))
