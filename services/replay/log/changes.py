"""Encoding of a CHANGES record: chunks and items that were added, items that were removed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.services.replay.state.change_sink import TABLE_NUMBERS
from tidemill.services.replay.tables.stats import STATS_FIELDS

CHUNK = np.dtype(
    [
        ("id", "<u8"),  # its number among all chunks ever stored
        ("params_version", "<u8"),
        ("stream", "<u4"),
        ("number", "<u4"),  # its position in the stream
        ("size", "<u4"),  # bytes of its blob
        ("step_count", "<u2"),
    ]
)
"""One chunk, packed."""

ITEM = np.dtype(
    [
        ("first_chunk", "<u8"),  # id of the chunk with its first step
        ("priority", "<f8"),
        ("slot", "<u4"),
        ("number", "<u4"),  # insertion number modulo 2^32
        ("times_sampled", "<u4"),
        ("payload", "<u4"),  # bytes of its payload
        ("offset", "<u2"),  # of its first step in that chunk
        ("length", "<u2"),
    ]
)
"""One item, packed."""

SLOT = np.dtype("<u4")
SIZE = np.dtype("<u4")
STAT = np.dtype("<i8")

# A table is named by the low bits of its number, which no other table has that exists at the time.
_PREFIX = struct.Struct("<QHHIH")  # env_steps, table that names the chunks' signature, packed columns, chunks, tables
_SECTION = struct.Struct("<HIIQIQ")  # table, removed, items, bytes of payloads, size, removed so far
_COUNT = struct.Struct("<H")
_LEAVING = struct.Struct("<HIIQ")  # table, removed, size, removed so far
_STATS_BYTES = (STATS_FIELDS - 1) * STAT.itemsize  # the last is behind all sections, where earlier versions do not look

Records = NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class TableChanges:
    """Changes of one table: first the removed items, then the inserted ones.

    Attributes:
        table: Number of the table.
        stats: Its counters afterwards, int64 [STATS_FIELDS].
        removed: Slots that were emptied, [R].
        inserted: Items that came and are still there, `ITEM` [N].
        payloads: One for each of these, or empty.
        size: Items in the table afterwards.
        removed_so_far: Slots ever reported as emptied, including these.
    """

    table: int
    stats: Ints
    removed: Ints
    inserted: Records
    payloads: tuple[bytes, ...] = ()
    size: int = 0
    removed_so_far: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ChunkColumns:
    """Chunks as the log keeps them.

    Attributes:
        table: Number of a table with their signature.
        chunks: `CHUNK` [C].
        packed_sizes: Bytes of each chunk's LZ4 blocks, [C, columns packed with LZ4].
    """

    table: int
    chunks: Records
    packed_sizes: Ints


def encode_changes(env_steps: int, chunks: ChunkColumns | None, tables: Sequence[TableChanges]) -> bytes:
    """Return the meta part of a record; `env_steps` are the agent decisions stored so far."""
    if chunks is None:
        pieces = [_PREFIX.pack(env_steps, 0, 0, 0, len(tables))]
    else:
        width = chunks.packed_sizes.shape[1]
        pieces = [_PREFIX.pack(env_steps, chunks.table % TABLE_NUMBERS, width, len(chunks.chunks), len(tables))]
        pieces += [chunks.chunks.tobytes(), chunks.packed_sizes.astype(SIZE).tobytes()]
    for changes in tables:
        payloads = b"".join(changes.payloads)
        counts = (len(changes.removed), len(changes.inserted), len(payloads), changes.size, changes.removed_so_far)
        pieces.append(_SECTION.pack(changes.table % TABLE_NUMBERS, *counts))
        pieces.append(changes.stats[:-1].astype(STAT).tobytes())
        pieces += [changes.removed.astype(SLOT).tobytes(), changes.inserted.tobytes(), payloads]
    pieces += [changes.stats[-1:].astype(STAT).tobytes() for changes in tables]
    return b"".join(pieces)


def encode_leaving(tables: Sequence[TableChanges]) -> bytes:
    """Return the copy of a record: what went, without which the items of earlier records could not be trusted."""
    pieces = [_COUNT.pack(len(tables))]
    for changes in tables:
        counts = (len(changes.removed), changes.size, changes.removed_so_far)
        pieces.append(_LEAVING.pack(changes.table % TABLE_NUMBERS, *counts))
        pieces.append(changes.removed.astype(SLOT).tobytes())
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class RawSection:
    """A table's part of a record, its columns not yet looked at.

    Attributes:
        table: Number of the table modulo `TABLE_NUMBERS`.
        size: Items in the table afterwards.
        removed_so_far: Slots ever reported as emptied, including these.
        stats: Bytes of its numbers, the last left out; none in a copy.
        removed_count: Number of slots in `removed`.
        removed: Bytes of `SLOT`.
        item_count: Number of items in `items`.
        items: Bytes of `ITEM`.
        payloads: Their payloads, joined.
    """

    table: int
    size: int
    removed_so_far: int
    stats: memoryview
    removed_count: int
    removed: memoryview
    item_count: int
    items: memoryview
    payloads: memoryview


@dataclass(frozen=True, slots=True)
class RawChanges:
    """A record, its columns not yet looked at: those of many records are joined first.

    Attributes:
        env_steps: Agent decisions stored so far.
        table: Number of a table with the chunks' signature, modulo `TABLE_NUMBERS`.
        packed_columns: Entries of `packed_sizes` for each chunk.
        chunk_count: Number of chunks.
        chunks: Bytes of `CHUNK`.
        packed_sizes: Bytes of `SIZE`.
        sections: One for each table.
        last_stats: Bytes of `STAT`: the last number of each table; none in a record of an earlier version.
    """

    env_steps: int
    table: int
    packed_columns: int
    chunk_count: int
    chunks: memoryview
    packed_sizes: memoryview
    sections: tuple[RawSection, ...]
    last_stats: memoryview


def cut_changes(meta: memoryview) -> RawChanges:
    """Cut the meta part of a record into its columns."""
    env_steps, table, width, chunk_count, table_count = _PREFIX.unpack_from(meta)
    sizes_at = _PREFIX.size + chunk_count * CHUNK.itemsize
    position = sizes_at + chunk_count * width * SIZE.itemsize
    chunks, packed_sizes = meta[_PREFIX.size : sizes_at], meta[sizes_at:position]
    sections = []
    for _ in range(table_count):
        section, position = _cut_section(meta, position)
        sections.append(section)
    return RawChanges(env_steps, table, width, chunk_count, chunks, packed_sizes, tuple(sections), meta[position:])


def cut_leaving(copy: memoryview) -> tuple[RawSection, ...]:
    """Cut the copy of a record into what went of each table; no items came."""
    nothing = copy[:0]
    position = _COUNT.size
    sections = []
    for _ in range(_COUNT.unpack_from(copy)[0]):
        table, removed_count, size, removed_so_far = _LEAVING.unpack_from(copy, position)
        start = position + _LEAVING.size
        position = start + removed_count * SLOT.itemsize
        removed = copy[start:position]
        sections.append(RawSection(table, size, removed_so_far, nothing, removed_count, removed, 0, nothing, nothing))
    return tuple(sections)


def _cut_section(meta: memoryview, start: int) -> tuple[RawSection, int]:
    table, removed_count, item_count, payload_bytes, size, removed_so_far = _SECTION.unpack_from(meta, start)
    stats_at = start + _SECTION.size
    removed_at = stats_at + _STATS_BYTES
    items_at = removed_at + removed_count * SLOT.itemsize
    payloads_at = items_at + item_count * ITEM.itemsize
    end = payloads_at + payload_bytes
    section = RawSection(
        table,
        size,
        removed_so_far,
        meta[stats_at:removed_at],
        removed_count,
        meta[removed_at:items_at],
        item_count,
        meta[items_at:payloads_at],
        meta[payloads_at:end],
    )
    return section, end
