"""What is left of the chunks and items that a log tells of: a few array operations over all records at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.services.replay.log_blocks import Locations
from tidemill.services.replay.log_changes import CHUNK, ITEM, SLOT
from tidemill.services.replay.log_frame import CRC_BYTES
from tidemill.services.replay.log_reader import ChunkPieces, TablePieces, join_sizes

Ints = NDArray[np.int64]
Records = NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class KnownChunks:
    """Every chunk of one signature that the log has, in order of stream and position.

    Attributes:
        columns: `CHUNK` [N].
        where: Where the log has each.
        packed_sizes: Bytes of each one's LZ4 blocks, [N, width].
    """

    columns: Records
    where: Locations
    packed_sizes: Ints


@dataclass(frozen=True, slots=True, eq=False)
class KnownItems:
    """The items of one table that came and have not gone.

    Attributes:
        columns: `ITEM` [N].
        segments: Segment that has each, [N].
        sequences: Number of the record that has each, [N].
        payloads: Payload of each, or empty when none has one.
    """

    columns: Records
    segments: Ints
    sequences: Ints
    payloads: tuple[bytes, ...]


def known_chunks(pieces: ChunkPieces) -> KnownChunks:
    """Return the chunks of many records; of one that was written twice, the later place."""
    columns = np.frombuffer(b"".join(pieces.columns), dtype=CHUNK)
    counts = np.array(pieces.counts, dtype=np.int64)
    sizes = columns["size"].astype(np.int64)
    ends = np.cumsum(sizes + CRC_BYTES)
    starts = ends - (sizes + CRC_BYTES)
    first = np.cumsum(counts) - counts  # of each record
    offsets = starts - np.repeat(starts[first], counts) + np.repeat(np.array(pieces.bodies, dtype=np.int64), counts)
    segments = np.repeat(np.array(pieces.segments, dtype=np.int64), counts)
    kept = _last_of_each(columns["id"])
    order = kept[np.lexsort((columns["number"][kept], columns["stream"][kept]))]
    ids = columns["id"].astype(np.int64)
    where = Locations(ids[order], segments[order], offsets[order], sizes[order])
    return KnownChunks(columns[order], where, join_sizes(pieces)[order])


def known_items(pieces: TablePieces) -> KnownItems:
    """Return the items whose slot saw nothing after they came."""
    removed = np.frombuffer(b"".join(pieces.removed), dtype=SLOT)
    items = np.frombuffer(b"".join(pieces.items), dtype=ITEM)
    removed_counts = np.array(pieces.removed_counts, dtype=np.int64)
    item_counts = np.array(pieces.item_counts, dtype=np.int64)
    # the order of events: what went of the first record, what came of it, what went of the second, ...
    ends = np.cumsum(removed_counts + item_counts)
    starts = ends - removed_counts - item_counts
    when_removed = _positions(starts, removed_counts)
    when_came = _positions(starts + removed_counts, item_counts)
    newest = np.full(int(max(removed.max(initial=0), items["slot"].max(initial=0))) + 1, -1, dtype=np.int64)
    np.maximum.at(newest, removed, when_removed)
    np.maximum.at(newest, items["slot"], when_came)
    live = np.flatnonzero(newest[items["slot"]] == when_came)
    segments = np.repeat(np.array(pieces.segments, dtype=np.int64), item_counts)
    sequences = np.repeat(np.array(pieces.sequences, dtype=np.int64), item_counts)
    return KnownItems(items[live], segments[live], sequences[live], _payloads(pieces, items["payload"], live))


def _last_of_each(values: NDArray[np.generic]) -> Ints:
    """Return the position of the last entry of each value."""
    _, from_the_end = np.unique(values[::-1], return_index=True)
    last: Ints = len(values) - 1 - from_the_end.astype(np.int64)
    return last


def _positions(starts: Ints, counts: Ints) -> Ints:
    """Return start, start + 1, ... of each of some runs, joined."""
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    positions: Ints = np.repeat(starts, counts) + within
    return positions


def _payloads(pieces: TablePieces, sizes: NDArray[np.generic], live: Ints) -> tuple[bytes, ...]:
    if not sizes.any():
        return ()
    joined = b"".join(pieces.payloads)
    ends = np.cumsum(sizes.astype(np.int64))
    starts = ends - sizes.astype(np.int64)
    return tuple(joined[start:end] for start, end in zip(starts[live].tolist(), ends[live].tolist(), strict=True))
