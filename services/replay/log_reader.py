"""Reads the segments of a log and sorts what they tell by table, without looking at a single chunk or item."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.replay.log_changes import CHUNK, SIZE, STAT, RawChanges, cut_changes
from services.replay.log_frame import MAGIC, Frame, Kind, Scan, blob_is_intact, scan, split_body
from services.replay.log_state import check_format
from services.replay.segment_file import LogFolder

Json = dict[str, Any]

UNREADABLE = ".unreadable"
"""Suffix of files that are set aside because no record is in them."""


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
    """What happened in one table, as bytes of many records; in each, first slots were emptied, then items came.

    Attributes:
        removed: `SLOT` of each record.
        removed_counts: Slots in each.
        items: `ITEM` of each.
        item_counts: Items in each.
        payloads: Their payloads, joined.
        segments: Segment of each.
    """

    removed: list[memoryview] = field(default_factory=list)
    removed_counts: list[int] = field(default_factory=list)
    items: list[memoryview] = field(default_factory=list)
    item_counts: list[int] = field(default_factory=list)
    payloads: list[memoryview] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Damage:
    """What was found broken.

    Attributes:
        records: Complete records whose checksum is wrong, and stretches in which no record starts.
        record_bytes: Their bytes.
        torn_bytes: Bytes at the end of the last segment that were not written to their end, and were cut.
    """

    records: int = 0
    record_bytes: int = 0
    torn_bytes: int = 0


@dataclass(slots=True)
class LogContents:
    """Everything a log tells.

    Attributes:
        configs: Configuration of each table, by its number.
        stats: Newest numbers of each table, int64, by its number.
        stats_sequences: Record that told them.
        epochs: Streams of each actor, by the epoch's number, in the order they were opened.
        chunks: By number of a table with their signature.
        tables: By number.
        history: Names what `env_steps` counts; 0 in logs of before there were histories.
        env_steps: Agent decisions stored.
        next_epoch: Number of the next epoch.
        next_stream: Number of the next stream.
        next_chunk: Least identity of the next chunk.
        sequence: Newest record.
        segment_sizes: Bytes of each segment, the oldest first.
        damage: What was broken.
    """

    configs: dict[int, Json] = field(default_factory=dict)
    stats: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    stats_sequences: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, Json] = field(default_factory=dict)
    chunks: dict[int, ChunkPieces] = field(default_factory=dict)
    tables: dict[int, TablePieces] = field(default_factory=dict)
    history: int = 0
    env_steps: int = 0
    next_epoch: int = 1
    next_stream: int = 0
    next_chunk: int = 1
    sequence: int = 0
    segment_sizes: dict[int, int] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)


def read_log(folder: LogFolder) -> LogContents:
    """Read every segment; what was not written to its end is cut off.

    Raises:
        FatalError: the files have another format.
    """
    contents = LogContents()
    numbers = folder.segments()
    for number in numbers:
        size = _read_segment(contents, folder.segment(number), number, is_last=number == numbers[-1])
        if size:
            contents.segment_sizes[number] = size
        else:
            folder.remove(number)
    return contents


def _read_segment(contents: LogContents, path: Path, number: int, *, is_last: bool) -> int:
    """Take up what one segment tells; return its size, 0 if there is nothing in it."""
    data = _map(path)
    found = scan(data)
    contents.damage.records += found.damaged + found.damaged_tail
    contents.damage.record_bytes += found.damaged_bytes
    if is_last:
        _drop_torn_record(contents, data, found)
    for frame in found.frames:
        _take(contents, frame, number, path)
    if not found.frames and found.damaged_tail and bytes(data[: len(MAGIC)]) != MAGIC:
        path.replace(path.with_name(path.name + UNREADABLE))  # not written by this program, as far as one can tell
    elif is_last:
        contents.damage.torn_bytes += len(data) - found.end
        os.truncate(path, found.end)
    elif found.end < len(data):
        contents.damage.records += not found.damaged_tail
        contents.damage.record_bytes += len(data) - found.end
    return found.end


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _drop_torn_record(contents: LogContents, data: memoryview, found: Scan) -> None:
    """Leave the last record out if its body is broken: it was not written to its end."""
    if not found.frames or found.frames[-1].end != found.end:
        return
    frame = found.frames[-1]
    if frame.kind is not Kind.CHANGES or _body_is_intact(data, frame, cut_changes(frame.meta)):
        return
    found.frames.pop()
    found.end = frame.start
    contents.damage.records += 1


def _body_is_intact(data: memoryview, frame: Frame, changes: RawChanges) -> bool:
    chunks = np.frombuffer(changes.chunks, dtype=CHUNK)
    blobs = split_body(data, frame, chunks["size"].tolist())
    return all(blob_is_intact(identity, blob) for identity, blob in zip(chunks["id"].tolist(), blobs, strict=True))


def _take(contents: LogContents, frame: Frame, segment: int, path: Path) -> None:
    contents.sequence = max(contents.sequence, frame.sequence)
    if frame.kind is Kind.CHANGES:
        _take_changes(contents, frame, segment)
        return
    document: Json = json.loads(bytes(frame.meta))
    if frame.kind is Kind.SEGMENT:
        check_format(document["format"], path)
        _take_state(contents, document, frame.sequence)
    elif frame.kind is Kind.TABLE:
        contents.configs[document["number"]] = document["config"]
    elif frame.kind is Kind.EPOCH:
        for closed in document["closed"]:
            contents.epochs.pop(closed, None)
        _take_epochs(contents, [document["epoch"]])


def _take_state(contents: LogContents, document: Json, sequence: int) -> None:
    for name in ("env_steps", "next_epoch", "next_stream", "next_chunk"):
        setattr(contents, name, max(getattr(contents, name), document[name]))
    contents.history = document.get("history", 0)
    for table in document["tables"]:
        contents.configs[table["number"]] = table["config"]
        contents.stats[table["number"]] = np.array(table["stats"], dtype=np.int64)
        contents.stats_sequences[table["number"]] = sequence
    contents.epochs.clear()
    _take_epochs(contents, document["epochs"])


def _take_epochs(contents: LogContents, epochs: Sequence[Json]) -> None:
    for epoch in epochs:
        contents.epochs[epoch["number"]] = epoch
        contents.next_epoch = max(contents.next_epoch, epoch["number"] + 1)
        contents.next_stream = max(contents.next_stream, epoch["first_stream"] + len(epoch["next_steps"]))


def _take_changes(contents: LogContents, frame: Frame, segment: int) -> None:
    changes = cut_changes(frame.meta)
    contents.env_steps = max(contents.env_steps, changes.env_steps)
    if changes.chunk_count:
        pieces = contents.chunks.setdefault(changes.table, ChunkPieces(width=changes.packed_columns))
        pieces.columns.append(changes.chunks)
        pieces.packed_sizes.append(changes.packed_sizes)
        pieces.counts.append(changes.chunk_count)
        pieces.segments.append(segment)
        pieces.bodies.append(frame.body)
    for section in changes.sections:
        table = contents.tables.setdefault(section.table, TablePieces())
        table.removed.append(section.removed)
        table.removed_counts.append(section.removed_count)
        table.items.append(section.items)
        table.item_counts.append(section.item_count)
        table.payloads.append(section.payloads)
        table.segments.append(segment)
        contents.stats[section.table] = np.frombuffer(section.stats, dtype=STAT)
        contents.stats_sequences[section.table] = frame.sequence


def join_sizes(pieces: ChunkPieces) -> NDArray[np.int64]:
    """Return the packed sizes of all chunks, int64 [N, width]."""
    sizes = np.frombuffer(b"".join(pieces.packed_sizes), dtype=SIZE).astype(np.int64)
    return sizes.reshape(sum(pieces.counts), pieces.width)  # a table of vectors has no packed column: width 0
