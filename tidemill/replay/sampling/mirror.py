"""A table's rows kept by whoever samples it, so that every step crosses the wire and is decoded once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array, Ints
from tidemill.errors import DataLoss
from tidemill.replay.batch import Blocks, SampledBatch
from tidemill.replay.codec import decode_chunks, window_index
from tidemill.replay.sampling.shared_arrays import reserve_private
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.types import Signature

Reserve = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Returns an array of zeros, given its shape and dtype."""


class RowKeeper(Protocol):
    """Keeps the rows of some columns elsewhere than in a mirror's own memory, such as on a GPU."""

    @property
    def columns(self) -> frozenset[str]:
        """Names of those columns."""

    @property
    def host_bytes(self) -> int:
        """Bytes of the host's memory that each row takes that is gathered for a batch."""

    def keep(
        self, signature: Signature, blocks: Sequence[Blocks], step_counts: Ints, places: Ints
    ) -> NDArray[np.bool_]:
        """Decode whole chunks of these columns to where their rows are kept; return which are corrupt, [C].

        Called for one batch at a time, in their order. The arguments are those of `codec.decode_chunks`.

        Raises:
            DataLoss: The blocks are not those of the signature.
        """


@dataclass(frozen=True, slots=True)
class MirrorSize:
    """Size of the rows that a sampler keeps.

    Attributes:
        slots: Chunks of each server that it has room for.
        slot_steps: Steps of the longest chunk.
        hold: Batches that may be drawn before one is read.
    """

    slots: int
    slot_steps: int
    hold: int

    def to_message(self) -> pb.Mirror:
        """Return the message that asks for it."""
        return pb.Mirror(slots=self.slots, slot_steps=self.slot_steps, hold=self.hold)


class TableMirror:
    """The rows of chunks, by slot. Every method may be called from any thread.

    A sampler's streams `keep` the chunks that come with each batch, each stream in the order of its batches. Decoding
    threads look up the rows of a batch with `rows_of` and, once they have copied what they need, ask with `is_intact`
    whether it was overwritten meanwhile. With slots held for `MirrorSize.hold` batches that does not happen.

    Attributes:
        columns: The rows of each column of the signature that is kept here, [parts * slots * slot_steps, ...]. Not to
            be written to.
        parts: Servers whose chunks it has room for.
    """

    def __init__(
        self,
        signature: Signature,
        size: MirrorSize,
        parts: int = 1,
        reserve: Reserve = reserve_private,
        elsewhere: RowKeeper | None = None,
    ) -> None:
        """Take address space for rows; memory is taken as they are filled.

        Args:
            signature: The columns.
            size: What is kept of each server.
            parts: Servers whose chunks have room: those listed, or more than there are behind a DNS name, where
                some may be replaced or added while the sampler runs.
            reserve: Gives the memory. Where another process keeps the rows (`SharedArrays`), this mirror only reads
                them: what was kept there is looked up here.
            elsewhere: Keeps the rows of some columns; None if all are kept here.
        """
        self._signature, self._steps = signature, size.slot_steps
        self.size, self.parts, self._elsewhere = size, parts, elsewhere
        is_elsewhere = [elsewhere is not None and spec.name in elsewhere.columns for spec in signature]
        self._here = [place for place, found in enumerate(is_elsewhere) if not found]
        self._there = [place for place, found in enumerate(is_elsewhere) if found]
        slots = self.parts * size.slots
        self.columns: dict[str, Array] = {
            spec.name: reserve((slots * size.slot_steps, *spec.shape), np.dtype(spec.dtype))
            for spec in self._specs(self._here)
        }
        self._writes: Ints = reserve((slots,), np.dtype(np.int64))  # how often each slot was filled
        self._corrupt: NDArray[np.bool_] = reserve((slots,), np.dtype(np.bool_))
        self._lock = threading.Lock()  # of those that write

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows that are kept here, once all slots are filled."""
        return sum(column.nbytes for column in self.columns.values())

    @property
    def elsewhere_bytes(self) -> int:
        """Bytes of the host's memory that a row of a batch takes whose columns are kept elsewhere."""
        return 0 if self._elsewhere is None else self._elsewhere.host_bytes

    def keep(self, batch: SampledBatch, part: int = 0) -> SampledBatch:
        """Keep the chunks that came with a batch; return it without their blocks.

        Args:
            batch: What a stream with this mirror received.
            part: Which of the servers it comes from, 0 .. parts - 1.

        Raises:
            DataLoss: The batch is not one of this table's signature, or names slots that are not there.
        """
        assert batch.slots is not None, "the stream was opened without a mirror"
        assert batch.sent is not None
        if len(batch.slots) != len(batch.step_counts):
            raise DataLoss(f"a batch of {len(batch.step_counts)} chunks names {len(batch.slots)} slots")
        if int(batch.slots.max(initial=0)) >= self.size.slots:
            raise DataLoss(f"a batch names slot {int(batch.slots.max())} of {self.size.slots}")
        if int(batch.step_counts.max(initial=0)) > self._steps:
            raise DataLoss(f"a chunk has {int(batch.step_counts.max())} steps, a slot {self._steps}")
        slots = batch.slots + part * self.size.slots
        with self._lock:
            filled = slots[batch.sent]
            self._writes[filled] += 1
            self._corrupt[filled] = self._decode(batch.blocks, batch.step_counts[batch.sent], filled * self._steps)
            written = self._writes[slots]
        return replace(batch, blocks=(), slots=slots, writes=written)

    def _decode(self, blocks: Sequence[Blocks], step_counts: Ints, places: Ints) -> NDArray[np.bool_]:
        """Decode chunks to where their rows are kept, here or elsewhere; return which are corrupt, [C]."""
        if len(blocks) != len(self._signature):
            raise DataLoss(f"the chunks have {len(blocks)} columns, the signature {len(self._signature)}")
        here = [blocks[place] for place in self._here]
        corrupt = decode_chunks(self._specs(self._here), here, step_counts, self.columns, places)
        if self._elsewhere is not None and len(places):
            there = [blocks[place] for place in self._there]
            corrupt |= self._elsewhere.keep(self._specs(self._there), there, step_counts, places)
        return corrupt

    def _specs(self, places: Sequence[int]) -> Signature:
        return tuple(self._signature[place] for place in places)

    def corrupt_chunks(self, batch: SampledBatch) -> Ints:
        """Positions of a kept batch's chunks that could not be decoded; empty if the batch is not intact."""
        assert batch.slots is not None
        corrupt = np.flatnonzero(self._corrupt[batch.slots])
        # asked afterwards: what was written over a sound chunk must not cost its items their place in the table
        return corrupt if self.is_intact(batch) else corrupt[:0]

    def rows_of(self, batch: SampledBatch, length: int) -> Ints:
        """Return the rows of each item of a kept batch, oldest first, [B, length]; see `codec.window_index`."""
        assert batch.slots is not None
        starts = np.cumsum(batch.step_counts) - batch.step_counts
        steps = int(batch.step_counts.sum())
        index = window_index(batch.first_rows, batch.lengths, length, steps)
        place = np.repeat(batch.slots * self._steps - starts, batch.step_counts) + np.arange(steps)
        rows: Ints = place[index]
        return rows

    def is_intact(self, batch: SampledBatch) -> bool:
        """True if the rows of a kept batch are still the ones that came with it."""
        assert batch.slots is not None, "the batch was not kept"
        assert batch.writes is not None
        return bool((self._writes[batch.slots] == batch.writes).all())
