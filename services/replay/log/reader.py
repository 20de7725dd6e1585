"""Reader of the segments of a log: it sorts their records by table without decoding chunks or items.

Nothing is written here: repairs that the files need before the log continues are only noted.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.atomic_files import is_there
from tidemill.services.replay.log.changes import CHUNK, SIZE, STAT, RawSection, cut_changes, cut_leaving
from tidemill.services.replay.log.corruption import Continuity, Corruption, Mend, Repair
from tidemill.services.replay.log.frame import Frame, Kind, Scan, blob_is_intact, check_format, scan, split_body
from tidemill.services.replay.log.segments import LogFolder, NewestSegment
from tidemill.services.replay.log.snapshot import Snapshot
from tidemill.services.replay.state.change_sink import TABLE_NUMBERS
from tidemill.services.replay.tables.insertion_times import Mark, Marks

Json = dict[str, Any]


@dataclass(slots=True)
class ChunkPieces:
    """The chunks of one signature, as bytes of many records.

    Attributes:
        columns: `CHUNK` of each record.
        packed_sizes: `SIZE` of each.
        counts: Chunks in each.
        segments: Segment of each.
        bodies: Where the body of each starts.
        width: Entries of `packed_sizes` for each chunk.
    """

    columns: list[memoryview] = field(default_factory=list)
    packed_sizes: list[memoryview] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)
    width: int = 0


@dataclass(slots=True)
class TablePieces:
    """The changes of one table, as bytes of many records; in each, slots are emptied before items are added.

    Attributes:
        removed: `SLOT` of each record.
        removed_counts: Slots in each.
        items: `ITEM` of each.
        item_counts: Items in each.
        payloads: Their payloads, joined.
        segments: Segment of each.
        sequences: Number of each record.
    """

    removed: list[memoryview] = field(default_factory=list)
    removed_counts: list[int] = field(default_factory=list)
    items: list[memoryview] = field(default_factory=list)
    item_counts: list[int] = field(default_factory=list)
    payloads: list[memoryview] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)


@dataclass(slots=True)
class LogContents:
    """Everything a log holds.

    Attributes:
        configs: Configuration of each table, by its number.
        dropped: Numbers of tables that were dropped.
        names: Configuration of dropped tables whose number still names the signature of chunks, by number.
        stated: The newest record that described every table there was, by its sequence number.
        numbers: Number of each table that changes may name, by the number modulo `TABLE_NUMBERS` that they have.
        next_table: Least number of the next table.
        live: What was changed of a table while it was in use, see `describe_table`; by its number.
        stats: Newest numbers of each table, int64, by its number.
        stats_sequences: The record that reported them.
        times: When the items of each table came, see `InsertionTimes.marks`; by its number.
        marks: Newest marks of each table when it was logged by itself, the oldest first; by its number.
        epochs: Streams of each actor, by the epoch's number, in the order they were opened.
        closed: The columns of `ClosedStreams`, one row for each epoch that was closed.
        chunks: By number of a table with their signature.
        tables: By number.
        store_id: Names what `env_steps` counts; 0 if no record names it.
        env_steps: Agent decisions stored.
        next_epoch: Number of the next epoch.
        next_stream: Number of the next stream.
        next_chunk: Least identity of the next chunk.
        next_segment: Number of the next segment.
        chain: How the records are linked.
        end_is_lost: Whether the newest records are missing.
        segment_sizes: Bytes of each segment, the oldest first.
        segment_records: Records in each, the corrupt ones left out.
        lost_records: Records of which only copies are left, which do not hold everything.
        corruption: What was corrupt or missing.
        repairs: What the files need before the log continues.
    """

    configs: dict[int, Json] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    names: dict[int, Json] = field(default_factory=dict)
    stated: int = 0
    numbers: dict[int, int] = field(default_factory=dict)
    next_table: int = 1
    live: dict[int, Json] = field(default_factory=dict)
    stats: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    stats_sequences: dict[int, int] = field(default_factory=dict)
    times: dict[int, Marks] = field(default_factory=dict)
    marks: dict[int, list[Mark]] = field(default_factory=dict)
    epochs: dict[int, Json] = field(default_factory=dict)
    closed: list[list[Any]] = field(default_factory=list)
    chunks: dict[int, ChunkPieces] = field(default_factory=dict)
    tables: dict[int, TablePieces] = field(default_factory=dict)
    store_id: int = 0
    env_steps: int = 0
    next_epoch: int = 1
    next_stream: int = 0
    next_chunk: int = 1
    next_segment: int = 1
    chain: Continuity = field(default_factory=Continuity)
    end_is_lost: bool = False
    segment_sizes: dict[int, int] = field(default_factory=dict)
    segment_records: dict[int, int] = field(default_factory=dict)
    lost_records: int = 0
    corruption: Corruption = field(default_factory=Corruption)
    repairs: list[Repair] = field(default_factory=list)


def read_log(folder: LogFolder, mark: bytes, newest: NewestSegment | None, snapshot: Snapshot | None) -> LogContents:
    """Read every segment of the log that has a mark.

    Args:
        folder: Where they lie.
        mark: Of the log.
        newest: What is noted of the newest segment.
        snapshot: The newest snapshot; it names the newest record of its time.

    Raises:
        FatalError: a file has another format.
    """
    contents = LogContents()
    numbers = folder.segments()
    noted = newest.segment if newest is not None else 0
    empty = 0
    for number in numbers:
        is_last = number == numbers[-1]
        copies = _scan(contents, folder.copies(number), mark, number, is_last=is_last)
        synced = max([frame.synced for frame in copies.frames] + ([snapshot.synced] if snapshot is not None else [0]))
        records = _scan(contents, folder.segment(number), mark, number, synced, is_last=is_last)
        may_be_empty = is_last and is_there(folder.segment(number)) and not records.frames
        if may_be_empty and number == noted and synced <= contents.chain.sequence:
            records.cut = contents.chain.sequence + 1  # the power failed before any of it was on the disk
        elif is_last and not records.cut and is_there(folder.segment(number)):
            records.cut = _find_hole(contents, records, copies, synced, folder.copies(number))
        if is_torn := records.cut > 0:
            _cut_copies(contents, copies, folder.copies(number), records.cut)
        if records.frames or copies.frames:
            _take_segment(contents, records, copies, number)
        elif may_be_empty and (is_torn or not (records.corrupt or records.corrupt_tail)):
            empty = number  # begun, without a complete record
    _close(contents, {*contents.segment_records, empty} - {0}, newest, snapshot)
    seen = snapshot.segment if snapshot is not None else 0
    contents.next_segment = max([0, *({*numbers, noted, seen} - {empty})]) + 1
    return contents


def _scan(contents: LogContents, path: Path, mark: bytes, number: int, synced: int = 0, *, is_last: bool) -> Scan:
    """Return the records of a file, none if it is not of this log; note corruption and its repair.

    Of the last segment, what another file says was `synced` is not taken for unfinished.
    """
    if not is_there(path):
        return Scan()
    data = _map(path)
    found = scan(data, mark)
    if not found.frames:
        check_format(data, path)
    corruption = contents.corruption
    for start, end in found.corrupt:
        corruption.add(f"{path.name}: {end - start} bytes at {start} are corrupt")
    named = next((json.loads(bytes(f.meta))["segment"] for f in found.frames if f.kind is Kind.SEGMENT), number)
    is_foreign = not found.frames and (found.corrupt_tail or found.corrupt)
    if named != number or is_foreign:
        what = "it holds no record of this log" if is_foreign else f"it is segment {named} under another name"
        corruption.add(f"{path.name}: {what}; it is set aside")
        contents.repairs.append(Repair(path, Mend.SET_ASIDE))
        return Scan(corrupt_tail=True)
    if is_last:
        _cut_torn(contents, data, found, path, synced)
    rest = len(data) - found.end
    if found.corrupt_tail or (rest and not is_last):
        corruption.add(f"{path.name}: {rest} bytes at its end are corrupt")
    if is_last:
        corruption.torn_bytes += rest
        contents.repairs.append(Repair(path, Mend.CUT, found.end))
    elif not found.frames:
        contents.repairs.append(Repair(path, Mend.REMOVE))
    in_order = sorted(found.frames, key=lambda frame: frame.sequence)
    if in_order != found.frames:
        corruption.add(f"{path.name}: its records are out of order")
    return found


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _take_segment(contents: LogContents, records: Scan, copies: Scan, number: int) -> None:
    """Take over the records of one segment, and copies where records are lost."""
    contents.segment_sizes[number] = records.end + copies.end
    contents.segment_records[number] = 0
    for frame in sorted([*records.frames, *copies.frames], key=lambda frame: (frame.sequence, frame.is_copy)):
        before = contents.chain.sequence
        if contents.chain.follows(frame):
            contents.segment_records[number] += not frame.is_copy
            contents.lost_records += frame.is_copy and frame.kind is Kind.CHANGES
            _take(contents, frame, number)
        elif not (frame.is_copy and frame.sequence == before):
            contents.corruption.add(f"segment {number}: record {frame.sequence} is repeated or out of order")


def _cut_torn(contents: LogContents, data: memoryview, found: Scan, path: Path, synced: int) -> None:
    """Leave out what was not synced from the first record on that is missing or whose body is corrupt.

    The disk may have any part of it after a loss of power. Nothing of it was promised, and with a part of it a stream
    would have a hole.
    """
    if not found.frames or found.frames[0].is_copy:
        return
    synced = max(synced, *(frame.synced for frame in found.frames))
    expected = contents.chain.sequence + 1 if contents.chain.sequence else found.frames[0].sequence
    for place, frame in enumerate(found.frames):
        is_missing = frame.sequence > expected > synced
        if is_missing or (frame.sequence > synced and not _body_is_intact(data, frame)):
            what = f"record {expected} is missing" if is_missing else f"the body of record {frame.sequence} is corrupt"
            contents.corruption.add(f"{path.name}: {what}, and what follows was not synced: it is cut")
            is_alone = not is_missing and frame is found.frames[-1]  # its copy says what it removed
            found.cut, found.end = 0 if is_alone else expected, found.frames[place - 1].end if place else 0
            del found.frames[place:]
            return
        expected = frame.sequence + 1


def _find_hole(contents: LogContents, records: Scan, copies: Scan, synced: int, path: Path) -> int:
    """Return the first record of the last segment of which there is not even a copy, but a later one's; 0 for none.

    Only one that was not synced, as in `_cut_torn`: of copies, too, the disk may have any after a loss of power.
    """
    synced = max([synced, *(frame.synced for frame in records.frames)])
    expected = max([contents.chain.sequence, *(frame.sequence for frame in records.frames)]) + 1
    for frame in copies.frames:
        if frame.sequence > expected > synced:
            what = f"record {expected} is missing, and what follows was not synced: it is cut"
            contents.corruption.add(f"{path.name}: {what}")
            return expected
        expected = max(expected, frame.sequence + 1)
    return 0


def _cut_copies(contents: LogContents, copies: Scan, path: Path, sequence: int) -> None:
    """Leave out the copies of a record and of those behind it."""
    kept = [frame for frame in copies.frames if frame.sequence < sequence]
    if len(kept) < len(copies.frames):
        copies.frames, copies.end = kept, kept[-1].end if kept else 0
        contents.repairs.append(Repair(path, Mend.CUT, copies.end))


def _body_is_intact(data: memoryview, frame: Frame) -> bool:
    if frame.kind is not Kind.CHANGES:
        return True
    chunks = np.frombuffer(cut_changes(frame.meta).chunks, dtype=CHUNK)
    blobs = split_body(data, frame, chunks["size"].tolist())
    return all(blob_is_intact(identity, blob) for identity, blob in zip(chunks["id"].tolist(), blobs, strict=True))


def _close(contents: LogContents, present: set[int], newest: NewestSegment | None, snapshot: Snapshot | None) -> None:
    """Compare the end of the log with what other files say of it."""
    chain, corruption = contents.chain, contents.corruption
    seen = snapshot if snapshot is not None else Snapshot(0, ())
    noted = newest if newest is not None else NewestSegment(b"", 0, 0)
    known = max(noted.segment, seen.segment)
    numbers = range(min(present, default=known), max({*present, known}, default=0) + 1)
    there = {number for number in present if contents.segment_records.get(number, 1)}
    corruption.missing_segments = [number for number in numbers if number and number not in there]
    reached = max(seen.sequence, noted.sequence - 1)  # what came before the newest segment was synced
    if known > max(present, default=0) and not (seen.is_last and seen.segment == known):
        reached = max(reached, chain.sequence, noted.sequence) + 1  # the number of records in it is unknown
    if reached > chain.sequence:
        contents.end_is_lost = True
        chain.gap(reached)
    chain.end()
    corruption.missing_records = chain.missing_records + contents.lost_records
    corruption.notes += [f"segment {number} is missing" for number in corruption.missing_segments]
    corruption.notes += [f"records {gap.first} to {gap.last} are missing" for gap in chain.gaps]
    if contents.lost_records:
        corruption.notes.append(f"{contents.lost_records} records are lost, except for what they removed")
    if newest is None and contents.segment_sizes:
        corruption.add("the file that names the newest segment is missing or corrupt")


def _take(contents: LogContents, frame: Frame, segment: int) -> None:
    if frame.kind is Kind.CHANGES:
        if frame.is_copy:
            _take_sections(contents, cut_leaving(frame.meta), b"", frame, segment)
        else:
            _take_changes(contents, frame, segment)
        return
    document: Json = json.loads(bytes(frame.meta))
    if frame.kind is Kind.SEGMENT:
        _take_state(contents, document, frame.sequence)
    elif frame.kind is Kind.TABLE:
        if "dropped" in document:
            _drop_table(contents, document)
        else:
            _take_logged_table(contents, document)
    elif frame.kind is Kind.EPOCH:
        for number in document["closed"]:
            if (epoch := contents.epochs.pop(number, None)) is not None:
                contents.closed.append([epoch["actor_id"], number, epoch["first_stream"], len(epoch["next_steps"])])
        _take_epochs(contents, [document["epoch"]])


def _take_state(contents: LogContents, document: Json, sequence: int) -> None:
    for name in ("env_steps", "next_epoch", "next_stream", "next_chunk"):
        setattr(contents, name, max(getattr(contents, name), document[name]))
    contents.store_id = document["store_id"]
    contents.stated = sequence
    contents.numbers.clear()
    _take_names(contents, document.get("dropped", ()))
    contents.next_table = max(contents.next_table, document.get("next_table", 1))
    for table in document["tables"]:
        _take_table(contents, table)
        contents.stats[table["number"]] = np.array(table["stats"], dtype=np.int64)
        contents.stats_sequences[table["number"]] = sequence
        contents.times[table["number"]] = table.get("times", ((), ()))
    for number, size, removed in document["told"]:
        contents.chain.report(number, size, removed, removed)
    contents.epochs.clear()
    contents.closed = document.get("closed", [])
    _take_epochs(contents, document["epochs"])


def _take_table(contents: LogContents, document: Json) -> None:
    contents.numbers[document["number"] % TABLE_NUMBERS] = document["number"]
    contents.configs[document["number"]] = document["config"]
    contents.live[document["number"]] = document.get("live", {})


def _take_logged_table(contents: LogContents, document: Json) -> None:
    _take_table(contents, document)
    if mark := document.get("mark"):
        contents.marks.setdefault(document["number"], []).append(mark)
    if document["number"] not in contents.chain.reports:
        contents.chain.report(document["number"], 0, 0, 0)


def _drop_table(contents: LogContents, document: Json) -> None:
    number = document["number"]
    contents.dropped.add(number)
    contents.configs.pop(number, None)
    contents.numbers.pop(number % TABLE_NUMBERS, None)
    _take_names(contents, document["dropped"])
    contents.next_table = max(contents.next_table, number + 1)


def _take_names(contents: LogContents, names: Sequence[tuple[int, Json]]) -> None:
    contents.names = dict(names)
    contents.numbers |= {number % TABLE_NUMBERS: number for number in contents.names}


def _take_epochs(contents: LogContents, epochs: Sequence[Json]) -> None:
    for epoch in epochs:
        contents.epochs[epoch["number"]] = epoch
        contents.next_epoch = max(contents.next_epoch, epoch["number"] + 1)
        contents.next_stream = max(contents.next_stream, epoch["first_stream"] + len(epoch["next_steps"]))


def _take_changes(contents: LogContents, frame: Frame, segment: int) -> None:
    changes = cut_changes(frame.meta)
    contents.env_steps = max(contents.env_steps, changes.env_steps)
    if changes.chunk_count:
        number = contents.numbers.get(changes.table, changes.table)
        pieces = contents.chunks.setdefault(number, ChunkPieces(width=changes.packed_columns))
        pieces.columns.append(changes.chunks)
        pieces.packed_sizes.append(changes.packed_sizes)
        pieces.counts.append(changes.chunk_count)
        pieces.segments.append(segment)
        pieces.bodies.append(frame.body)
    _take_sections(contents, changes.sections, changes.last_stats, frame, segment)


def _take_sections(
    contents: LogContents, sections: Sequence[RawSection], last_stats: memoryview | bytes, frame: Frame, segment: int
) -> None:
    for place, section in enumerate(sections):
        number = contents.numbers.get(section.table, section.table)  # or the record that said so is corrupt
        table = contents.tables.setdefault(number, TablePieces())
        table.removed.append(section.removed)
        table.removed_counts.append(section.removed_count)
        table.items.append(section.items)
        table.item_counts.append(section.item_count)
        table.payloads.append(section.payloads)
        table.segments.append(segment)
        table.sequences.append(frame.sequence)
        before = section.removed_so_far - section.removed_count
        contents.chain.report(number, section.size, before, section.removed_so_far)
        if section.stats:
            last = last_stats[place * STAT.itemsize : (place + 1) * STAT.itemsize]
            contents.stats[number] = np.frombuffer(b"".join((section.stats, last)), dtype=STAT)
            contents.stats_sequences[number] = frame.sequence


def join_sizes(pieces: ChunkPieces) -> NDArray[np.int64]:
    """Return the packed sizes of all chunks, int64 [N, width]."""
    sizes = np.frombuffer(b"".join(pieces.packed_sizes), dtype=SIZE).astype(np.int64)
    return sizes.reshape(sum(pieces.counts), pieces.width)  # a table of vectors has no packed column: width 0
