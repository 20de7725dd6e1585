"""Completes sampled items with their blocks, within the memory for batches; replaces items corrupt on disk.

A draw with a seed is refused instead once anything was found corrupt: it would not be the draw of another run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tidemill.arrays import Ints
from tidemill.errors import DataLoss, FailedPrecondition, InvalidArgument, Reason
from tidemill.logger import LateLogger
from tidemill.replay.batch import Blocks, SampledBatch
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.chunks.mirror import ChunkMirror
from tidemill.services.replay.log.blob_reader import BlobReader
from tidemill.services.replay.log.logged_blocks import logged
from tidemill.services.replay.sample_queue import MAX_BATCH_BYTES, OpenedSample, SampleDemand
from tidemill.services.replay.state.memory import MemoryBudget
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.sampled_items import SampledItems
from tidemill.services.replay.tables.table import Table

COPIES = 2
"""How often a batch is in memory while it waits for its caller: as bytes in Python and in gRPC's buffer."""


class BatchRoom:
    """The part of the server's memory that one sampling call uses."""

    def __init__(self, budget: MemoryBudget, freed: Callable[[], None]) -> None:
        """Start with nothing; `freed` is called when memory is given back."""
        self._budget, self._freed = budget, freed
        self._taken = 0

    def is_free(self) -> bool:
        """True if the memory budget has room for the call to assemble a batch."""
        return self._budget.has_room_for_batch

    @property
    def largest(self) -> int:
        """Bytes of the largest batch that ever fits; 0 means no limit."""
        return self._budget.share_limit // COPIES

    def take(self, size_bytes: int) -> None:
        """Count a batch that is being assembled."""
        self._taken += COPIES * size_bytes
        self._budget.batch_bytes += COPIES * size_bytes

    def release(self) -> None:
        """Give back what was taken: the caller has received its batch, or is gone."""
        taken, self._taken = self._taken, 0
        self._budget.batch_bytes -= taken
        if taken:
            self._freed()


_log = LateLogger()


class BatchReader:
    """Draws batches: waits for the table, then for the disk."""

    def __init__(
        self,
        replay: ReplayState,
        admission: AdmissionQueue,
        blobs: BlobReader | None,
        corrupt_records: Callable[[], int] = lambda: 0,
    ) -> None:
        """Draw from a state.

        Args:
            replay: The state.
            admission: Where draws wait.
            blobs: Reads what is not in memory; None if everything is in memory.
            corrupt_records: Returns how many records of the log were found corrupt or missing.
        """
        self._replay, self._admission, self._blobs = replay, admission, blobs
        self._corrupt_records = corrupt_records

    async def read(
        self,
        opened: OpenedSample,
        wanted: SampleDemand,
        room: BatchRoom,
    ) -> tuple[SampledBatch, Ints, int]:
        """Draw a batch once the table admits it and there is room, and return it with the blocks its caller lacks.

        If it fails, or is cancelled, what was drawn comes back to the table. Otherwise the caller says by the table's
        `arrived` or `came_back` what became of the batch.

        Args:
            opened: What the call asked for.
            wanted: The batch.
            room: Memory of the call.

        Returns:
            The batch, the era of the table in which each of its items was drawn, int64 [B], and how many samples the
            rate limiter has counted for it.

        Raises:
            InvalidArgument: The batch is too large.
            FailedPrecondition: A chunk is too long for the caller's mirror.
            DataLoss: The batch has a seed, and the table has lost something (`check_intact`).
            NotFound: The table was dropped, and the log has deleted chunks of the batch.
            Unavailable: The log could not be read.
        """
        table, mirror = opened.table, opened.mirror
        held: list[SampledItems] = []
        counted = wanted.items

        def draw() -> SampledItems:
            nonlocal counted
            if wanted.seed is not None:
                self.check_intact(table)
            limiter_counts = wanted.counted_by(table.limiter)
            drawn = self._draw(opened, held, wanted.items, limiter_counts, wanted.seed)
            counted = len(drawn.batch.keys) if limiter_counts is None else limiter_counts
            size = drawn.size_bytes(table.store, mirror)
            _check_size(len(drawn.batch.keys), size, opened.most_bytes, room)
            longest = int(drawn.batch.step_counts.max(initial=0))
            if mirror is not None and longest > opened.slot_steps:
                raise FailedPrecondition(
                    f"mirror.slot_steps (`keep.chunk_length`) is {opened.slot_steps}, must be at least the "
                    f"{longest} steps of a chunk",
                    reason=Reason.SLOT_TOO_SMALL,
                )
            room.take(size)
            return drawn

        try:
            drawn = await self._admission.sample(
                table,
                wanted.items,
                opened.without_replacement,
                draw,
                limited=wanted.counted is None,
                has_room=room.is_free,
                first=wanted.first,
            )
            if self._blobs is not None:
                return *(await self._complete(self._blobs, opened, wanted, drawn, held)), counted
            lacked = _lacked(drawn, mirror)
            blocks = table.store.blocks.read(drawn.chunks[lacked], drawn.batch.step_counts[lacked])
            return _placed(drawn, lacked, blocks, mirror), drawn.eras, counted
        except BaseException:
            for part in held:
                table.came_back(part.batch.keys, part.ages, part.eras, counted if part is held[0] else 0)
            if held:
                self._admission.changed()
            raise
        finally:
            for part in held:
                part.release(table.store)

    def check_intact(self, table: Table) -> None:
        """Check that nothing of a table is lost.

        Raises:
            DataLoss: The log is corrupt, or was, or items were given up for want of memory: a draw with a seed would
                not be what it is in another run.
        """
        if given_up := self._replay.memory.evictions:
            raise DataLoss(
                f"{given_up} items were removed because memory was full, so draws with a seed cannot be reproduced: "
                "start the run from scratch with a smaller table.max_items, a larger replay.max_memory_mib or a log "
                "(replay.storage.folder)"
            )
        items, records = table.counters.corrupt_items, self._corrupt_records()
        if items or records:
            raise DataLoss(
                f"table {table.config.name!r} has lost {items} items, and its log {records} records, to corruption on "
                "disk, so draws with a seed cannot be reproduced: start the run from scratch"
            )

    async def _complete(
        self,
        reader: BlobReader,
        opened: OpenedSample,
        wanted: SampleDemand,
        drawn: SampledItems,
        held: list[SampledItems],
    ) -> tuple[SampledBatch, Ints]:
        table, mirror, without_replacement = opened.table, opened.mirror, opened.without_replacement
        blocks, count = logged(table.store), len(drawn.batch.keys)
        while True:
            lacked = _lacked(drawn, mirror)
            chunks = drawn.chunks[lacked]
            blobs, corrupt = await reader.blobs(blocks, chunks)
            if not len(corrupt):
                whole = [blob for blob in blobs if blob is not None]
                found = blocks.cut(chunks, whole, drawn.batch.step_counts[lacked])
                return _placed(drawn, lacked, found, mirror), drawn.eras
            table.check_there()  # a dropped one's chunks may be gone with their segments
            self._drop(table, corrupt)
            if wanted.seed is not None:
                self.check_intact(table)
            redraw_all = without_replacement and not table.config.max_times_sampled  # or an item could come twice
            kept = drawn.without(drawn.chunks if redraw_all else corrupt)
            keys, kept_keys = drawn.batch.keys, kept.batch.keys
            gone = ~np.isin(keys, kept_keys)
            table.arrived(keys[gone], drawn.eras[gone])  # what was used up does not come back corrupt
            if opened.epochs is None or not len(kept_keys):  # an epoch's batch is smaller without them
                lost = count - len(kept_keys)
                redraw = partial(self._draw, opened, held, lost, 0)  # the rate limiter has counted them
                kept = kept.concat(
                    await self._admission.sample(table, lost, without_replacement, redraw, limited=False)
                )
            drawn = kept

    def _draw(
        self, opened: OpenedSample, held: list[SampledItems], items: int, counted: int | None, seed: int | None = None
    ) -> SampledItems:
        """Draw, and note it in `held` at once: a call that is cancelled just then must release it."""
        rng, now_s = opened.rng, self._replay.now_s()
        held.append(opened.table.draw(items, opened.without_replacement, counted, seed, rng, opened.epochs, now_s))
        return held[-1]

    def _drop(self, table: Table, chunks: Ints) -> None:
        dropped = self._replay.drop_chunks(table.store, chunks)
        _log.error("corrupt chunks on disk, their items were dropped", chunks=len(chunks), items=dropped)
        self._admission.changed()


def _check_size(items: int, size: int, most_bytes: int, room: BatchRoom) -> None:
    whole = (
        "are in a batch: use a smaller batch_size"
        if most_bytes >= MAX_BATCH_BYTES
        else "fit in a message: use a smaller batch_size, or a caller that takes batches in parts (max_message_bytes "
        "of SampleOpen)"
    )
    for limit, what in (
        (most_bytes, whole),
        (room.largest, "have room on their way: use a smaller batch_size or a greater replay.max_memory_mib"),
    ):
        if limit and size > limit:
            raise InvalidArgument(
                f"a batch of {items} items has {size} bytes, at most {limit} {what}", reason=Reason.TOO_LARGE
            )


def _lacked(drawn: SampledItems, mirror: ChunkMirror | None) -> Ints:
    """Return the chunks whose blocks are to be sent, by position."""
    return np.arange(len(drawn.chunks)) if mirror is None else mirror.missing(drawn.chunks)


def _placed(drawn: SampledItems, lacked: Ints, blocks: tuple[Blocks, ...], mirror: ChunkMirror | None) -> SampledBatch:
    if mirror is None:
        return drawn.with_blocks(blocks)
    return drawn.with_blocks(blocks, mirror.place(drawn.chunks), lacked)
