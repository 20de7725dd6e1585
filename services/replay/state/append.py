"""One message of an appending actor: checked whole, then stored whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import contains
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.errors import FailedPrecondition, InvalidArgument, Reason
from tidemill.replay.chunk import Chunk, ItemBatch, check_priorities
from tidemill.replay.limits import lz4_bound
from tidemill.replay.table_config import TableConfig
from tidemill.services.replay.chunks.store import NONE, IncomingChunks
from tidemill.services.replay.state.streams import Epoch
from tidemill.services.replay.tables.items import NewItems
from tidemill.services.replay.tables.table import Table
from tidemill.types import Codec, Signature


class BlockSizes:
    """Allowed sizes of the blocks of a chunk.

    A RAW block has exactly the bytes of its steps; any other is an LZ4 block of them.
    """

    def __init__(self, signature: Signature, chunk_length: int) -> None:
        """Take the columns, and the steps that most chunks have."""
        self._signature, self._chunk_length = signature, chunk_length
        self._of_whole = self._of(chunk_length)

    def check(self, blocks: Sequence[bytes], steps: int) -> int:
        """Return the bytes of a chunk's blocks. InvalidArgument: one cannot hold so many steps, or one is missing."""
        ranges = self._of_whole if steps == self._chunk_length else self._of(steps)
        if len(blocks) != len(ranges):
            raise InvalidArgument(f"columns has {len(blocks)} blocks, must have {len(ranges)}")
        sizes = list(map(len, blocks))
        if not all(map(contains, ranges, sizes)):
            self._refuse(sizes, ranges, steps)
        return sum(sizes)

    def _of(self, steps: int) -> tuple[range, ...]:
        """Return the sizes that the block of each column may have."""
        sizes = [(column, steps * column.step_bytes) for column in self._signature]
        return tuple(
            range(size, size + 1) if column.codec is Codec.RAW else range(1, lz4_bound(size) + 1)
            for column, size in sizes
        )

    def _refuse(self, sizes: Sequence[int], ranges: Sequence[range], steps: int) -> NoReturn:
        column, size, allowed = next(
            found for found in zip(self._signature, sizes, ranges, strict=True) if found[1] not in found[2]
        )
        if column.codec is Codec.RAW:
            raise InvalidArgument(
                f"column {column.name!r} has {size} bytes, must have {allowed.start} for {steps} steps"
            )
        raise InvalidArgument(
            f"column {column.name!r} has {size} bytes, must have 1 .. {allowed.stop - 1}: "
            f"an LZ4 block of {steps * column.step_bytes} bytes is never longer"
        )


def check_chunk(chunk: Chunk, sizes: BlockSizes, env_count: int, chunk_length: int) -> int:
    """Check a chunk's fields against what its streams were opened with; return the bytes of its blocks.

    Raises:
        InvalidArgument: a field is out of range, or a block has an impossible size.
    """
    if not chunk.env_index < env_count:
        raise InvalidArgument(f"env_index is {chunk.env_index}, must be below env_count ({env_count})")
    if not 1 <= chunk.step_count <= chunk_length:
        raise InvalidArgument(f"step_count is {chunk.step_count}, must be 1 .. chunk_length ({chunk_length})")
    if chunk.first_step % chunk_length:
        raise InvalidArgument(f"first_step is {chunk.first_step}, must be a multiple of chunk_length ({chunk_length})")
    if chunk.decision_count > chunk.step_count:
        raise InvalidArgument(f"decision_count is {chunk.decision_count}, must be at most {chunk.step_count} steps")
    return sizes.check(chunk.blocks, chunk.step_count)


def is_new(chunk: Chunk, next_step: int, ended: bool) -> bool:
    """True if a chunk continues its stream, False if the stream already has it.

    Args:
        chunk: The chunk.
        next_step: The step its stream wants next.
        ended: Whether the stream has ended.

    Raises:
        FailedPrecondition: the chunk leaves a gap, goes beyond the stream's end or overlaps it in part.
    """
    if chunk.first_step + chunk.step_count <= next_step:
        return False
    where = f"chunk of env_index {chunk.env_index} at first_step {chunk.first_step}"
    if ended:
        raise FailedPrecondition(
            f"{where} comes after the stream's end at step {next_step}", reason=Reason.STREAM_ENDED
        )
    if chunk.first_step != next_step:
        raise FailedPrecondition(
            f"{where} leaves a gap, the stream's next step is {next_step}", reason=Reason.STREAM_GAP
        )
    return True


def check_items(
    items: ItemBatch,
    table: TableConfig,
    first_steps: NDArray[np.int64],
    step_counts: NDArray[np.int64],
    held_from: NDArray[np.int64],
) -> None:
    """Check a batch of items against the chunks of the same message.

    Args:
        items: The items.
        table: Its table.
        first_steps: First step of each chunk of the message, int64 [C].
        step_counts: Steps of each, int64 [C].
        held_from: First step of its stream that is still held, for each, int64 [C].

    Raises:
        InvalidArgument: lists differ in length, or a value is out of range.
    """
    count, max_item_steps = len(items.lengths), table.max_item_steps
    for name in ("chunk_indices", "last_offsets", "priorities", "times_sampled"):
        values = getattr(items, name)
        if values is not None and len(values) != count:
            raise InvalidArgument(f"{name} has {len(values)} entries, must have {count} like lengths")
    _check_payloads(items.payloads, count, table)
    chunks = items.chunk_indices.astype(np.int64)
    _check_all("chunk_indices", chunks, chunks < len(step_counts), f"below the number of chunks ({len(step_counts)})")
    offsets, lengths = items.last_offsets.astype(np.int64), items.lengths.astype(np.int64)
    _check_all("last_offsets", offsets, offsets < step_counts[chunks], "below step_count of the chunk")
    in_range = (lengths >= 1) & (lengths <= max_item_steps)
    _check_all("lengths", lengths, in_range, f"1 .. max_item_steps ({max_item_steps})")
    starts = first_steps[chunks] + offsets - lengths + 1
    _check_all("lengths", lengths, starts >= 0, "short enough not to reach before step 0")
    _check_all("lengths", lengths, starts >= held_from[chunks], "short enough to reach only steps that are still held")
    check_priorities(items.priorities, least=table.least_priority)


def check_item_tables(items: Sequence[ItemBatch], table_count: int) -> None:
    """Raise InvalidArgument unless each batch of items is for another one of the tables."""
    seen = set()
    for batch in items:
        if batch.table_index >= table_count:
            raise InvalidArgument(
                f"table_index is {batch.table_index}, must be below the number of tables ({table_count})"
            )
        if batch.table_index in seen:
            raise InvalidArgument(
                f"table_index is {batch.table_index} twice, must be different in each entry of a message"
            )
        seen.add(batch.table_index)


def _check_payloads(payloads: Sequence[bytes], count: int, table: TableConfig) -> None:
    expected = count if table.payload_bytes else 0
    if len(payloads) != expected:
        raise InvalidArgument(
            f"payloads has {len(payloads)} entries, must have {expected}: "
            f"payload_bytes of table {table.name!r} is {table.payload_bytes}"
        )
    sizes = set(map(len, payloads)) - {table.payload_bytes}
    if sizes:
        raise InvalidArgument(
            f"a payload has {max(sizes)} bytes, must have {table.payload_bytes} in table {table.name!r}"
        )


def _check_all(name: str, values: NDArray[np.generic], allowed: NDArray[np.bool_], what: str) -> None:
    if not allowed.all():
        i = int(np.flatnonzero(~allowed)[0])
        raise InvalidArgument(f"{name}[{i}] is {values[i]}, must be {what}")


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
    block_sizes: BlockSizes


@dataclass(frozen=True, slots=True, eq=False)
class AppendPlan:
    """New parts of a checked message.

    Attributes:
        revision: Revision of the epoch for which that is so.
        chunks: The message's chunks that are not there yet.
        sizes: Bytes of the blocks of each of them.
        is_new: For each chunk of the message whether it is among them, [C].
        items: The message's items, those of chunks that are there already included.
        tables: Tables that get at least one item.
        decisions: Agent decisions in the new chunks.
    """

    revision: int
    chunks: tuple[Chunk, ...]
    sizes: tuple[int, ...]
    is_new: NDArray[np.bool_]
    items: tuple[ItemBatch, ...]
    tables: tuple[Table, ...]
    decisions: int


def plan_append(session: AppendSession, chunks: Sequence[Chunk], items: Sequence[ItemBatch]) -> AppendPlan:
    """Check a message and find what of it is new; nothing is changed.

    Raises:
        InvalidArgument: a field is out of range.
        FailedPrecondition: a chunk leaves a gap, or the epoch was superseded.
        NotFound: a table of the session was dropped.
    """
    for table in session.tables:
        table.check_there()
    epoch = session.epoch
    epoch.check_current()
    fresh, sizes = _find_new(session, chunks)
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
    new = tuple(compress(chunks, fresh))
    return AppendPlan(
        epoch.revision,
        new,
        tuple(compress(sizes, fresh)),
        is_fresh,
        tuple(items),
        tuple(tables),
        sum(chunk.decision_count for chunk in new),
    )


@dataclass(frozen=True, slots=True, eq=False)
class AppendResult:
    """Result of a message.

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
    new = _add_chunks(epoch, planned.chunks, planned.sizes)
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


def _find_new(session: AppendSession, chunks: Sequence[Chunk]) -> tuple[list[bool], list[int]]:
    """Check chunks against the signature and their streams; return which are new, and the bytes of each."""
    epoch = session.epoch
    ahead: dict[int, tuple[int, bool]] = {}  # by stream: next step and whether ended, after the chunks so far
    new, sizes = [], []
    for chunk in chunks:
        sizes.append(check_chunk(chunk, session.block_sizes, len(epoch.streams), epoch.chunk_length))
        stream = epoch.streams[chunk.env_index]
        next_step, ended = ahead.get(chunk.env_index, (stream.next_step, stream.ended))
        new.append(is_new(chunk, next_step, ended))
        if new[-1]:
            ahead[chunk.env_index] = next_step + chunk.step_count, chunk.step_count < epoch.chunk_length
    return new, sizes


def _add_chunks(epoch: Epoch, chunks: Sequence[Chunk], sizes: Sequence[int]) -> Ints:
    """Store chunks that are new and continue their streams; return their slots, [C]."""
    slots = epoch.store.reserve(len(chunks))
    streams = [epoch.streams[chunk.env_index] for chunk in chunks]
    previous = []
    for stream, slot, chunk in zip(streams, slots, chunks, strict=True):
        previous.append(stream.last)
        if stream.tail == NONE:
            stream.tail, stream.tail_step = slot, chunk.first_step
        stream.last = slot
        stream.next_step += chunk.step_count
        stream.ended = chunk.step_count < epoch.chunk_length
    new = IncomingChunks(
        streams=[stream.number for stream in streams],
        numbers=[chunk.first_step // epoch.chunk_length for chunk in chunks],
        previous=previous,
        step_counts=[chunk.step_count for chunk in chunks],
        params_versions=[chunk.params_version for chunk in chunks],
        sizes=sizes,
        blocks=[chunk.blocks for chunk in chunks],
    )
    epoch.store.add(slots, new)
    epoch.tail_bytes += sum(sizes)
    return np.array(slots, dtype=np.int64)


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
