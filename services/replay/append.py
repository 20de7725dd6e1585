"""One message of an appending actor: checked whole, then stored whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.replay.writing.chunk import Chunk, ItemBatch
from tidemill.services.replay.append_check import BlockSize, check_chunk, check_item_tables, check_items, is_new
from tidemill.services.replay.chunks.store import NONE, NewChunk
from tidemill.services.replay.streams import Epoch
from tidemill.services.replay.tables.items import NewItems
from tidemill.services.replay.tables.table import Table

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class AppendSession:
    """The open streams of an actor.

    Attributes:
        epoch: The streams.
        tables: The tables its items go to.
        block_sizes: What sizes the blocks of its chunks may have.
    """

    epoch: Epoch
    tables: tuple[Table, ...]
    block_sizes: tuple[BlockSize, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AppendPlan:
    """What of a checked message is new.

    Attributes:
        revision: Revision of the epoch for which that is so.
        chunks: The message's chunks that are not there yet.
        is_new: For each chunk of the message whether it is among them, [C].
        items: The message's items, those of chunks that are there already included.
        tables: Tables that get at least one item.
        decisions: Agent decisions in the new chunks.
    """

    revision: int
    chunks: tuple[Chunk, ...]
    is_new: NDArray[np.bool_]
    items: tuple[ItemBatch, ...]
    tables: tuple[Table, ...]
    decisions: int


def plan_append(session: AppendSession, chunks: Sequence[Chunk], items: Sequence[ItemBatch]) -> AppendPlan:
    """Check a message and find what of it is new; nothing is changed.

    Raises:
        InvalidArgument: a field is out of range.
        FailedPrecondition: a chunk leaves a gap, or the epoch was superseded.
    """
    epoch = session.epoch
    epoch.check_current()
    fresh = _find_new(session, chunks)
    check_item_tables(items, len(session.tables))
    first_steps = np.array([chunk.first_step for chunk in chunks], dtype=np.int64)
    step_counts = np.array([chunk.step_count for chunk in chunks], dtype=np.int64)
    # nothing of a chunk that is already stored is inserted, so its items may reach back to anywhere
    held_from = np.array(
        [epoch.streams[chunk.env_index].tail_step if new else 0 for chunk, new in zip(chunks, fresh, strict=True)],
        dtype=np.int64,
    )
    is_fresh = np.array(fresh, dtype=np.bool_)
    tables = []
    for batch in items:
        table = session.tables[batch.table_index]
        check_items(batch, table.config, first_steps, step_counts, held_from)
        if is_fresh[batch.chunk_indices].any():
            tables.append(table)
    new = tuple(chunk for chunk, is_it in zip(chunks, fresh, strict=True) if is_it)
    return AppendPlan(
        epoch.revision, new, is_fresh, tuple(items), tuple(tables), sum(chunk.decision_count for chunk in new)
    )


@dataclass(frozen=True, slots=True, eq=False)
class AppendResult:
    """What became of a message.

    Attributes:
        slots: Slots of its new chunks, in order; some may be free again, int64 [C].
        blobs: Their blobs, for a log; empty without one.
        inserted: Tables that got items, each with the slots of those that are still there, int64 [N].
    """

    slots: Ints
    blobs: Sequence[bytes]
    inserted: Sequence[tuple[Table, Ints]]


def apply_append(session: AppendSession, planned: AppendPlan) -> AppendResult:
    """Store what is new of a message: its chunks, then the items of each table."""
    epoch = session.epoch
    epoch.revision += 1
    new = np.array([_add_chunk(epoch, chunk) for chunk in planned.chunks], dtype=np.int64)
    blobs = epoch.store.blocks.blobs(new)
    slots = np.full(len(planned.is_new), NONE, dtype=np.int64)
    slots[planned.is_new] = new
    inserted = []
    for batch in planned.items:
        picked = planned.is_new[batch.chunk_indices]
        table = session.tables[batch.table_index]
        if batch.times_sampled is not None and (limit := table.config.max_times_sampled):
            picked &= batch.times_sampled < limit
        if picked.any():
            inserted.append((table, table.insert(_locate(epoch, batch, picked, slots))))
    touched = {chunk.env_index for chunk in planned.chunks}
    unreachable = [slot for env_index in touched for slot in epoch.trim(epoch.streams[env_index])]
    epoch.let_go(unreachable)
    return AppendResult(new, blobs, inserted)


def _find_new(session: AppendSession, chunks: Sequence[Chunk]) -> list[bool]:
    """Check chunks against the signature and their streams; return which are new."""
    epoch = session.epoch
    ahead: dict[int, tuple[int, bool]] = {}  # by stream: next step and whether ended, after the chunks so far
    new = []
    for chunk in chunks:
        check_chunk(chunk, session.block_sizes, len(epoch.streams), epoch.chunk_length)
        stream = epoch.streams[chunk.env_index]
        next_step, ended = ahead.get(chunk.env_index, (stream.next_step, stream.ended))
        new.append(is_new(chunk, next_step, ended))
        if new[-1]:
            ahead[chunk.env_index] = next_step + chunk.step_count, chunk.step_count < epoch.chunk_length
    return new


def _add_chunk(epoch: Epoch, chunk: Chunk) -> int:
    stream = epoch.streams[chunk.env_index]
    slot = epoch.store.add(
        NewChunk(
            stream=stream.number,
            number=chunk.first_step // epoch.chunk_length,
            previous=stream.last,
            step_count=chunk.step_count,
            params_version=chunk.params_version,
            blocks=chunk.blocks,
        )
    )
    epoch.tail_bytes += epoch.store.bytes_at(slot)
    if stream.tail == NONE:
        stream.tail, stream.tail_step = slot, chunk.first_step
    stream.last = slot
    stream.next_step += chunk.step_count
    stream.ended = chunk.step_count < epoch.chunk_length
    return slot


def _locate(epoch: Epoch, batch: ItemBatch, picked: NDArray[np.bool_], slots: Ints) -> NewItems:
    """Return the picked items of a batch by the chunk and offset of their first step."""
    last_chunks = slots[batch.chunk_indices[picked]]
    lengths = batch.lengths[picked].astype(np.int64)
    first_offsets = batch.last_offsets[picked].astype(np.int64) - lengths + 1  # negative: in an earlier chunk
    back = -(first_offsets // epoch.chunk_length)
    payloads = batch.payloads
    if payloads and not picked.all():
        payloads = tuple(payloads[i] for i in np.flatnonzero(picked).tolist())
    return NewItems(
        first_chunks=epoch.store.walk_back(last_chunks, back),
        offsets=first_offsets + back * epoch.chunk_length,
        lengths=lengths,
        priorities=batch.priorities[picked],
        payloads=payloads,
        times_sampled=batch.times_sampled[picked] if batch.times_sampled is not None else None,
    )
