"""What a learner receives: one sampled batch, still encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


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
    """How much a server has stored, to this day.

    Attributes:
        store_id: Identifies the count: a server that starts with nothing stored counts from 0 under a new number.
        env_steps: Agent decisions in all chunks of this store_id; fewer than before if a crash took the newest.
    """

    store_id: int
    env_steps: int


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


@dataclass(frozen=True, slots=True, eq=False)
class SampledBatch:
    """B items and the C chunks that hold them, each chunk once. `tidemill.codec.decode` opens the columns.

    Attributes:
        keys: Keys of the items, for priority updates, uint64 [B]; from several shards uint64 [B, 2], each key with the
            number of its shard.
        probabilities: Probability with which the sampler chose each item, float64 [B].
        first_rows: Row of each item's first step, counted over the steps of all chunks, int64 [B].
        lengths: Steps of each item, int64 [B].
        payloads: Payload of each item; empty when none has one.
        step_counts: Steps of each chunk, int64 [C].
        params_versions: Version of the parameters that chose each chunk's last action, uint64 [C].
        blocks: One entry for each column of the signature, in its order. With a mirror, of the chunks in `sent` alone.
        table_items: Items in the table when the batch was drawn.
        total_weight: Sum of sampler weights when the batch was drawn.
        stored: What the server ever stored; of several shards, each by its name.
        slots: With a mirror, the slot of each chunk, int64 [C]; None without one.
        sent: With a mirror, which of the chunks came with blocks, by position, int64; None without one.
        writes: Once its chunks are kept in a `TableMirror`, how often each one's slot was filled by then, int64 [C].
        ages: If asked for, items inserted into the table after each item, until the batch was drawn, int64 [B].
        times_sampled: If asked for, how often each item was sampled, all of this batch included, int64 [B].
        priorities: If asked for, the priority of each item when the batch was drawn, float64 [B].
        epoch: If drawn by epochs, the place behind the batch, with the number of the batch's epoch.
        limiter_diff: How far inserts were ahead of samples by the rate limiter's count, in samples; 0 without a ratio.
        number: Of the batch in the call that brought it, from 1; 0 if it is not one call's.
    """

    keys: NDArray[np.uint64]
    probabilities: NDArray[np.float64]
    first_rows: NDArray[np.int64]
    lengths: NDArray[np.int64]
    payloads: tuple[bytes, ...]
    step_counts: NDArray[np.int64]
    params_versions: NDArray[np.uint64]
    blocks: tuple[Blocks, ...]
    table_items: int
    total_weight: float
    stored: Mapping[str, StoredSteps]
    limiter_diff: float = 0.0
    slots: NDArray[np.int64] | None = None
    sent: NDArray[np.int64] | None = None
    writes: NDArray[np.int64] | None = None
    ages: NDArray[np.int64] | None = None
    times_sampled: NDArray[np.int64] | None = None
    priorities: NDArray[np.float64] | None = None
    epoch: EpochPlace | None = None
    number: int = 0

    def needing(self, chunks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which items [B] have steps of some chunks [N]."""
        ends = np.cumsum(self.step_counts)
        first = np.searchsorted(ends, self.first_rows, side="right")
        last = np.searchsorted(ends, self.first_rows + self.lengths - 1, side="right")
        before = np.concatenate(([0], np.cumsum(np.isin(np.arange(len(ends)), chunks))))
        needing: NDArray[np.bool_] = before[last + 1] > before[first]
        return needing

    def take(self, places: NDArray[np.int64]) -> SampledBatch:
        """Return the items at some places [N], which may come twice, over the same chunks."""
        return replace(
            self,
            keys=self.keys[places],
            probabilities=self.probabilities[places],
            first_rows=self.first_rows[places],
            lengths=self.lengths[places],
            payloads=tuple(self.payloads[i] for i in places.tolist()) if self.payloads else (),
            ages=self.ages[places] if self.ages is not None else None,
            times_sampled=self.times_sampled[places] if self.times_sampled is not None else None,
            priorities=self.priorities[places] if self.priorities is not None else None,
        )

    @property
    def env_steps(self) -> int:
        """Agent decisions in all chunks the servers ever stored."""
        return sum(stored.env_steps for stored in self.stored.values())
