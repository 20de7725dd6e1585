"""Checks of what an actor sends, all made before anything of a message is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import FailedPrecondition, InvalidArgument
from tidemill.replay.table_config import TableConfig
from tidemill.replay.writing.chunk import Chunk, ItemBatch, check_priorities
from tidemill.types import Codec, Signature


@dataclass(frozen=True, slots=True)
class BlockSize:
    """What size a column's block may have.

    Attributes:
        name: Name of the column.
        step_bytes: Bytes of one step, uncompressed.
        exact: Whether a block has exactly that many for each step; otherwise it is an LZ4 block of them.
    """

    name: str
    step_bytes: int
    exact: bool

    def check(self, block: bytes, steps: int) -> None:
        """Raise InvalidArgument unless `block` may hold `steps` steps of the column."""
        size = steps * self.step_bytes
        if self.exact:
            if len(block) != size:
                raise InvalidArgument(
                    f"column {self.name!r} has {len(block)} bytes, must have {size} for {steps} steps"
                )
        elif not 1 <= len(block) <= lz4_bound(size):
            raise InvalidArgument(
                f"column {self.name!r} has {len(block)} bytes, must have 1 .. {lz4_bound(size)}: "
                f"an LZ4 block of {size} bytes is never longer"
            )


def block_sizes(signature: Signature) -> tuple[BlockSize, ...]:
    """Return the sizes that the blocks of a chunk may have."""
    return tuple(BlockSize(column.name, column.step_bytes, column.codec is Codec.RAW) for column in signature)


def check_chunk(chunk: Chunk, sizes: Sequence[BlockSize], env_count: int, chunk_length: int) -> None:
    """Check a chunk's fields against what its streams were opened with.

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
    if len(chunk.blocks) != len(sizes):
        raise InvalidArgument(f"columns has {len(chunk.blocks)} blocks, must have {len(sizes)}")
    for size, block in zip(sizes, chunk.blocks, strict=True):
        size.check(block, chunk.step_count)


def lz4_bound(size_bytes: int) -> int:
    """Return the greatest size of an LZ4 block of so many bytes (LZ4_COMPRESSBOUND in lz4.h)."""
    return size_bytes + size_bytes // 255 + 16


def is_new(chunk: Chunk, next_step: int, ended: bool) -> bool:
    """Return whether a chunk continues its stream, or False if it is there already.

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
        raise FailedPrecondition(f"{where} comes after the stream's end at step {next_step}")
    if chunk.first_step != next_step:
        raise FailedPrecondition(f"{where} leaves a gap, the stream's next step is {next_step}")
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
    check_priorities(items.priorities)


def check_item_tables(items: Sequence[ItemBatch], table_count: int) -> None:
    """Raise InvalidArgument unless each batch of items is for another one of the tables."""
    seen = set()
    for batch in items:
        if batch.table_index >= table_count:
            raise InvalidArgument(f"table_index is {batch.table_index}, must be below {table_count} tables")
        if batch.table_index in seen:
            raise InvalidArgument(f"table_index {batch.table_index} comes twice, must come once in a message")
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
