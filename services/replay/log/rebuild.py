"""Rebuilds a state from what a log has: chunks, streams, tables and items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.replay.wire import config_from_json
from tidemill.services.replay.chunks.store import NONE, ChunkStore, StoredChunks
from tidemill.services.replay.log.blob_reader import BlobFiles
from tidemill.services.replay.log.changes import CHUNK, ITEM, SLOT
from tidemill.services.replay.log.frame import CRC_BYTES
from tidemill.services.replay.log.logged_blocks import Locations, logged
from tidemill.services.replay.log.reader import ChunkPieces, LogContents, TablePieces, join_sizes
from tidemill.services.replay.log.snapshot import Snapshot, TableSnapshot
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.state.streams import ClosedStreams, Epoch, Stream
from tidemill.services.replay.tables.insertion_times import InsertionTimes, Marks
from tidemill.services.replay.tables.items import NewItems, RestoredItems
from tidemill.services.replay.tables.rate_limiter import RateLimiter
from tidemill.services.replay.tables.stats import STATS_FIELDS, TableStats
from tidemill.services.replay.tables.table import Table

Records = NDArray[np.void]

_MOVED_BATCH = 1024
_NO_MARKS: Marks = ((), ())


@dataclass(frozen=True, slots=True, eq=False)
class SurvivingChunks:
    """Every chunk of one signature that the log has, in order of stream and position.

    Attributes:
        columns: `CHUNK` [N].
        where: Where the log has each.
        packed_sizes: Bytes of each one's LZ4 blocks, [N, width].
        earlier: Where the log has some of them as well, from before they were moved, the oldest first.
    """

    columns: Records
    where: Locations
    packed_sizes: Ints
    earlier: Locations


@dataclass(frozen=True, slots=True, eq=False)
class SurvivingItems:
    """The items of one table that were added and not removed.

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


def surviving_chunks(pieces: ChunkPieces) -> SurvivingChunks:
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
    places = Locations(ids, segments, offsets, sizes)
    earlier = places.part(np.setdiff1d(np.arange(len(ids)), kept))
    return SurvivingChunks(columns[order], places.part(order), join_sizes(pieces)[order], earlier)


def surviving_items(pieces: TablePieces) -> SurvivingItems:
    """Return the items whose slot did not change after they were added."""
    removed = np.frombuffer(b"".join(pieces.removed), dtype=SLOT)
    items = np.frombuffer(b"".join(pieces.items), dtype=ITEM)
    removed_counts = np.array(pieces.removed_counts, dtype=np.int64)
    item_counts = np.array(pieces.item_counts, dtype=np.int64)
    # the order of events: removals of the first record, its additions, removals of the second, ...
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
    return SurvivingItems(items[live], segments[live], sequences[live], _payloads_of(pieces, items["payload"], live))


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


def _payloads_of(pieces: TablePieces, sizes: NDArray[np.generic], live: Ints) -> tuple[bytes, ...]:
    if not sizes.any():
        return ()
    joined = b"".join(pieces.payloads)
    ends = np.cumsum(sizes.astype(np.int64))
    starts = ends - sizes.astype(np.int64)
    return tuple(joined[start:end] for start, end in zip(starts[live].tolist(), ends[live].tolist(), strict=True))


def rebuild(
    replay: ReplayState, contents: LogContents, snapshot: Snapshot | None, files: BlobFiles
) -> tuple[int, dict[int, int]]:
    """Fill an empty state; blobs stay in the log until `preload` reads them with `files`.

    Items are left out if the log has lost their chunks, or if it is unknown whether they were removed.

    Returns:
        The identity of the next chunk, and how many items of each table were lost, by the table's number.
    """
    for table in snapshot.tables if snapshot is not None else ():
        if table.number not in contents.dropped and snapshot is not None and snapshot.sequence >= contents.stated:
            contents.configs.setdefault(table.number, table.config)
    replay.store_id = contents.store_id or replay.store_id  # keys depend on it
    stores = {number: replay.name_store(config_from_json(config), number) for number, config in contents.names.items()}
    tables = {number: _restore_empty(replay, contents, number) for number in sorted(contents.configs)}
    known = {number: surviving_chunks(pieces) for number, pieces in contents.chunks.items()}
    stores |= {number: table.store for number, table in tables.items()}
    chunks = {number: found for number, found in known.items() if number in stores}
    for number, found in chunks.items():
        _restore_chunks(stores[number], found, files)
    epochs = [
        _restore_epoch(document, stores[document["table"]])
        for document in contents.epochs.values()
        if document["table"] in stores  # or the record that named it is corrupt
    ]
    for number, found in chunks.items():
        _advance_streams([epoch for epoch in epochs if epoch.store is stores[number]], found)
    lost = _restore_tables(tables, {id(stores[number]): found for number, found in chunks.items()}, contents, snapshot)
    for epoch in epochs:
        _hold_tails(epoch)
    # numbers that only chunks and items name must not be reused: the record that named them may be corrupt
    next_stream = max([contents.next_stream, *(int(found.columns["stream"].max()) + 1 for found in known.values())])
    replay.streams.restore(epochs, contents.next_epoch, next_stream, [ClosedStreams(*row) for row in contents.closed])
    replay.next_table = max(
        [replay.next_table, contents.next_table, *(number + 1 for number in (*contents.tables, *contents.chunks))]
    )
    for store in replay.stores:
        store.remove_unheld()
    replay.env_steps = contents.env_steps
    return max([contents.next_chunk, *(int(found.where.ids.max()) + 1 for found in known.values())]), lost


def _restore_empty(replay: ReplayState, contents: LogContents, number: int) -> Table:
    """Return a table without items, as live changes have left it."""
    table = replay.add_table(config_from_json(contents.configs[number]), number)
    if live := contents.live.get(number):
        table.declared = config_from_json(live["declared"])
        changes = live.get("former", ())  # earlier versions did not note it
        table.former.extend(config_from_json(contents.configs[number] | change) for change in changes)
        table.limiter = RateLimiter(table.config.rate_limiter, is_on=not live["rate_limiter_off"])
    return table


def _restore_chunks(store: ChunkStore, found: SurvivingChunks, files: BlobFiles) -> None:
    columns = found.columns
    slots = store.restore(
        StoredChunks(
            columns["stream"].astype(np.int64),
            columns["number"].astype(np.int64),
            columns["step_count"].astype(np.int64),
            columns["params_version"],
            found.where.sizes,
        )
    )
    blocks = logged(store)
    blocks.restore(slots, found.where, found.packed_sizes)
    earlier = found.earlier.part(_last_of_each(found.earlier.ids))  # in order of their ids
    by_id = np.argsort(found.where.ids)
    moved = slots[by_id[np.searchsorted(found.where.ids, earlier.ids, sorter=by_id)]]
    for start in range(0, len(moved), _MOVED_BATCH):  # the power may have failed before the disk had the later place
        batch = slice(start, start + _MOVED_BATCH)
        corrupt = np.array([blob is None for blob in files.read(found.where.part(moved[batch]))], dtype=np.bool_)
        blocks.relocate(moved[batch][corrupt], earlier.part(batch).part(corrupt))


def _restore_epoch(document: dict[str, Any], store: ChunkStore) -> Epoch:
    first = document["first_stream"]
    streams = [
        Stream(first + i, next_step, bool(ended), tail_step=next_step)
        for i, (next_step, ended) in enumerate(zip(document["next_steps"], document["ended"], strict=True))
    ]
    return Epoch(
        document["actor_id"],
        document["number"],
        document["chunk_length"],
        store,
        streams,
        document["tail_steps"],
        named=document.get("named", 0),
    )


def _advance_streams(epochs: Sequence[Epoch], found: SurvivingChunks) -> None:
    """Set each stream's next step to the end of its newest chunk."""
    streams, last = np.unique(found.columns["stream"][::-1], return_index=True)  # chunks are in order
    newest = len(found.columns) - 1 - last
    by_number = dict(zip(streams.tolist(), newest.tolist(), strict=True))
    numbers, steps = found.columns["number"].astype(np.int64), found.columns["step_count"].astype(np.int64)
    for epoch in epochs:
        for stream in epoch.streams:
            slot = by_number.get(stream.number)
            if slot is None:
                continue
            next_step = int(numbers[slot]) * epoch.chunk_length + int(steps[slot])
            if next_step >= stream.next_step:
                stream.next_step = stream.tail_step = next_step
                stream.ended = int(steps[slot]) < epoch.chunk_length
                stream.last = NONE if stream.ended else slot


def _hold_tails(epoch: Epoch) -> None:
    """Let each stream hold its newest chunks, as far as items yet to come may reach."""
    held = []
    for stream in epoch.streams:
        slot, oldest = stream.last, max(0, (stream.next_step - epoch.tail_steps) // epoch.chunk_length)
        while slot != NONE and stream.tail_step > oldest * epoch.chunk_length:
            held.append(slot)
            stream.tail, stream.tail_step = slot, stream.tail_step - epoch.chunk_length
            slot = epoch.store.previous_slot(slot)
        if stream.tail == NONE:
            stream.last = NONE
    epoch.tail_bytes += epoch.store.hold_tails(np.array(held, dtype=np.int64))


def _restore_tables(
    tables: dict[int, Table], chunks: dict[int, SurvivingChunks], contents: LogContents, snapshot: Snapshot | None
) -> dict[int, int]:
    """Fill the tables with items of chunks, by the identity of their store.

    Returns:
        How many items of each were lost, including tables that no record describes.
    """
    snapshots = {table.number: table for table in snapshot.tables} if snapshot is not None else {}
    reports = contents.chain.reports
    lost = {number: reports[number].size for number in reports.keys() - tables.keys() - contents.dropped}
    for number, table in tables.items():
        stats = contents.stats.get(number, np.zeros(STATS_FIELDS, dtype=np.int64))
        taken = snapshots.get(number)
        if taken is not None and snapshot is not None and snapshot.sequence >= contents.stats_sequences.get(number, 0):
            stats = np.array(taken.stats)
        pieces, known = contents.tables.get(number), chunks.get(id(table.store))
        found = surviving_items(pieces if pieces is not None else TablePieces())
        trusted = _trusted(found, contents.chain.breaks.get(number, 0), snapshot, taken)
        trusted &= found.sequences >= contents.chain.fork
        read = TableStats.from_array(stats, contents.env_steps)
        kept = _restore_table(table, read, found, trusted, known, taken)
        reported = [contents.times.get(number, _NO_MARKS), taken.times if taken is not None else _NO_MARKS]
        table.times = InsertionTimes(max(reported, key=lambda marks: sum(marks[1])), table.items.inserted)
        for time_s, inserted in contents.marks.get(number, ()):
            if inserted <= table.items.inserted:
                table.times.note(time_s, inserted)
        lost[number] = max(_size(number, contents, snapshot, taken) - kept, 0)
        table.counters.corrupt_items += lost[number]
    return lost


def _size(number: int, contents: LogContents, snapshot: Snapshot | None, taken: TableSnapshot | None) -> int:
    """Return the number of items of a table in its newest report."""
    report = contents.chain.reports.get(number)
    if taken is not None and snapshot is not None and (report is None or report.sequence < snapshot.sequence):
        return taken.size
    return report.size if report is not None else 0


def _trusted(
    found: SurvivingItems, end: int, snapshot: Snapshot | None, taken: TableSnapshot | None
) -> NDArray[np.bool_]:
    """Return a mask of the items that missing records, up to `end`, cannot have removed."""
    trusted: NDArray[np.bool_] = found.sequences >= end
    if taken is not None and snapshot is not None and snapshot.sequence >= end:
        trusted |= taken.knows(found.columns["slot"], found.columns["number"])
    return trusted


def _restore_table(
    table: Table,
    stats: TableStats,
    found: SurvivingItems,
    trusted: NDArray[np.bool_],
    chunks: SurvivingChunks | None,
    snapshot: TableSnapshot | None,
) -> int:
    """Fill a table with the items that are trusted and whole; return how many these are."""
    columns = found.columns
    slots = columns["slot"].astype(np.int64)
    ends = columns["offset"].astype(np.int64) + columns["length"]
    first, whole = _first_chunks(columns, chunks)
    whole &= trusted & (slots < table.items.capacity)
    whole[whole] = table.store.reaches(first[whole], ends[whole])
    priorities, times = columns["priority"].copy(), columns["times_sampled"].copy()
    if snapshot is not None:
        _overlay(columns, priorities, times, snapshot)
    ages = (stats.inserted - 1 - columns["number"].astype(np.int64)) & 0xFFFFFFFF
    order = np.argsort(-ages, kind="stable")
    order = order[whole[order]]
    new = NewItems(
        first[order],
        columns["offset"][order].astype(np.int64),
        columns["length"][order].astype(np.int64),
        priorities[order],
        tuple(found.payloads[i] for i in order.tolist()) if found.payloads else (),
    )
    segments = found.segments[order].astype(np.int32)
    restored = RestoredItems(new, slots[order], columns["number"][order], times[order], segments)
    table.restore(stats, restored)
    table.note_removed(slots[~whole])
    return len(order)


def _first_chunks(columns: NDArray[np.void], chunks: SurvivingChunks | None) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the slot of the chunk with each item's first step, [N], and for which there is one, [N]."""
    if chunks is None:
        return np.zeros(len(columns), dtype=np.int64), np.zeros(len(columns), dtype=np.bool_)
    wanted = columns["first_chunk"].astype(np.int64)
    ids = chunks.where.ids
    by_id = np.argsort(ids)
    places = np.minimum(np.searchsorted(ids, wanted, sorter=by_id), len(ids) - 1)
    first = by_id[places]
    return first, ids[first] == wanted


def _overlay(
    columns: NDArray[np.void],
    priorities: NDArray[np.float64],
    times_sampled: NDArray[np.uint32],
    snapshot: TableSnapshot,
) -> None:
    """Give items the priorities and counts a snapshot has of them; both name an item by slot and number."""
    if not len(columns):
        return
    places = np.full(int(columns["slot"].max(initial=0)) + 1, NONE, dtype=np.int64)
    places[columns["slot"]] = np.arange(len(columns))
    for states in snapshot.slices:
        known = states[states["slot"] < len(places)]
        at = places[known["slot"]]
        same = (at != NONE) & (columns["number"][at] == known["number"])
        priorities[at[same]] = known["priority"][same]
        times_sampled[at[same]] = known["times_sampled"][same]
