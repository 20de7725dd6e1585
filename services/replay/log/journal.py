"""Turns changes into records of the log and decides where each is written. Plain and synchronous, no I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from tidemill.arrays import Ints
from tidemill.replay.table_config import TableConfig
from tidemill.replay.wire import config_to_json
from tidemill.services.replay.log.changes import (
    CHUNK,
    ITEM,
    ChunkColumns,
    Records,
    TableChanges,
    encode_changes,
    encode_leaving,
)
from tidemill.services.replay.log.frame import CRC_BYTES, HEADER_BYTES, Blob, Kind, Record
from tidemill.services.replay.log.logged_blocks import Locations, logged
from tidemill.services.replay.log.writer import Command, Delete, Write
from tidemill.services.replay.state.change_sink import ChangeSink, NewChunks
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.state.streams import Epoch
from tidemill.services.replay.tables.table import Table


@dataclass(slots=True)
class LogPosition:
    """Position of the next record.

    Attributes:
        segment: Number of the segment.
        offset: Where in it; 0 in one that has not begun.
        sequence: Number of the newest record.
        next_chunk: Identity of the next chunk.
        removed: Slots of each table ever reported as emptied, by the table's number.
    """

    segment: int = 1
    offset: int = 0
    sequence: int = 0
    next_chunk: int = 1
    removed: dict[int, int] = field(default_factory=dict)


class Journal(ChangeSink):
    """Hands records to the writer in the order of the changes they report."""

    def __init__(
        self,
        submit: Callable[[Command], None],
        segment_bytes: int,
        position: LogPosition,
        describe_state: Callable[[], dict[str, Any]],
    ) -> None:
        """Begin at a position.

        Args:
            submit: Takes what is to be written.
            segment_bytes: Size at which a segment ends, in bytes; its last record may go beyond.
            position: Where the log continues, at the start of a segment.
            describe_state: Returns what a restart needs to know of everything before, as JSON can hold it.
        """
        self._submit, self._segment_bytes, self._describe = submit, segment_bytes, describe_state
        self._position = position
        self._sizes: dict[int, int] = {}  # items of each table as last reported
        self.segment_sizes: dict[int, int] = {}  # bytes, copies included, the oldest segment first

    @property
    def sequence(self) -> int:
        """Number of the newest record."""
        return self._position.sequence

    @property
    def segment(self) -> int:
        """Number of the segment that grows."""
        return self._position.segment

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(self.segment_sizes.values())

    def know_table(self, table: Table) -> None:
        """Note how many items a restored table has."""
        self._sizes[table.number] = table.size

    def begin(self) -> None:
        """Begin another segment if this one is full. Call it before making a change that is then logged.

        A segment starts with the state before its first change, so that it never promises what a torn record after
        it would have brought.
        """
        position = self._position
        if position.offset and position.offset < self._segment_bytes:
            return
        if position.offset:
            position.segment, position.offset = position.segment + 1, 0
        reported = [[number, size, position.removed.get(number, 0)] for number, size in self._sizes.items()]
        place = {"segment": position.segment, "next_chunk": position.next_chunk}
        self._log(Kind.SEGMENT, {**self._describe(), **place, "told": reported})

    def log_table(self, table: Table) -> None:
        """Write a new table, a new configuration of one, or when its newest items came."""
        self._sizes.setdefault(table.number, 0)
        self._log(Kind.TABLE, {**describe_table(table), "mark": table.times.newest})

    def log_drop(self, table: Table, names: Mapping[int, TableConfig]) -> None:
        """Write that a table was dropped, and the dropped tables whose numbers still name chunks."""
        self._sizes.pop(table.number, None)
        self._position.removed.pop(table.number, None)
        self._log(Kind.TABLE, {**describe_table(table), "dropped": _describe_names(names)})

    def log_epoch(self, epoch: Epoch, closed: Sequence[int]) -> None:
        """Write a new epoch, and the numbers of those it has closed."""
        self._log(Kind.EPOCH, {"epoch": describe_epoch(epoch), "closed": list(closed)})

    def _log(self, kind: Kind, document: object) -> None:
        """Write a record of a kind, and a copy of all of it."""
        meta = json.dumps(document).encode()
        self._write(kind, meta, copy=meta)

    def log_changes(self, env_steps: int, chunks: NewChunks | None, tables: Sequence[tuple[Table, Ints]]) -> None:
        """Write what changed: new chunks, and for each table what was emptied and which new slots it has.

        Args:
            env_steps: Agent decisions stored so far.
            chunks: The new chunks.
            tables: Tables that changed, each with the slots of new items, [N].
        """
        where = self._reserve(chunks) if chunks is not None else None
        columns = self._chunk_columns(chunks, where.ids) if chunks is not None and where is not None else None
        sections = [self._table_changes(table, slots) for table, slots in tables]
        meta = encode_changes(env_steps, columns, sections)
        blobs = list(zip(where.ids.tolist(), chunks.blobs, strict=True)) if chunks is not None and where else []
        start = self._write(Kind.CHANGES, meta, blobs, encode_leaving(sections))
        if chunks is not None and where is not None:
            offsets = where.offsets + start + HEADER_BYTES + len(meta)
            logged(chunks.store).locate(
                chunks.slots, Locations(where.ids, where.segments, offsets, where.sizes), self.sequence
            )
        for table, slots in tables:
            table.items.log(slots, self.segment)

    def log_moved(self, env_steps: int, chunks: NewChunks) -> Locations:
        """Write chunks again that the log has in an old segment; return where they will be once that is written."""
        ids = logged(chunks.store).ids[chunks.slots]
        meta = encode_changes(env_steps, self._chunk_columns(chunks, ids), [])
        where = self._places(ids, chunks.blobs)
        blobs = list(zip(ids.tolist(), chunks.blobs, strict=True))
        start = self._write(Kind.CHANGES, meta, blobs, encode_leaving([]))
        return Locations(ids, where.segments, where.offsets + start + HEADER_BYTES + len(meta), where.sizes)

    def delete(self, segment: int) -> None:
        """Have a segment deleted once everything so far is written."""
        del self.segment_sizes[segment]
        self._submit(Delete(segment))

    def _reserve(self, chunks: NewChunks) -> Locations:
        """Give identities to new chunks; offsets count from the start of the record's body."""
        first = self._position.next_chunk
        self._position.next_chunk += len(chunks.slots)
        where = self._places(np.arange(first, first + len(chunks.slots), dtype=np.int64), chunks.blobs)
        logged(chunks.store).ids[chunks.slots] = where.ids
        return where

    def _places(self, ids: Ints, blobs: Sequence[bytes]) -> Locations:
        sizes = np.fromiter(map(len, blobs), dtype=np.int64, count=len(blobs))
        offsets = np.cumsum(sizes + CRC_BYTES) - (sizes + CRC_BYTES)
        return Locations(ids, np.full(len(ids), self.segment, dtype=np.int64), offsets, sizes)

    def _chunk_columns(self, chunks: NewChunks, ids: Ints) -> ChunkColumns:
        store, slots = chunks.store, chunks.slots
        blocks = logged(store)
        columns = np.empty(len(slots), dtype=CHUNK)
        columns["id"], columns["params_version"] = ids, store.params_versions(slots)
        columns["stream"], columns["number"] = store.streams_of(slots), store.numbers_of(slots)
        columns["size"] = blocks.locations(slots).sizes
        columns["step_count"] = store.step_counts(slots)
        return ChunkColumns(blocks.table, columns, blocks.packed_sizes[slots].astype(np.int64))

    def _table_changes(self, table: Table, slots: Ints) -> TableChanges:
        number, removed = table.number, table.drain_removed()
        removed_so_far = self._position.removed.get(number, 0) + len(removed)
        self._position.removed[number] = removed_so_far
        self._sizes[number] = table.held_count
        columns, payloads = _item_columns(table, slots)
        return TableChanges(
            table=number,
            stats=table.stats.to_array(),
            removed=removed,
            inserted=columns,
            payloads=payloads,
            size=table.held_count,
            removed_so_far=removed_so_far,
        )

    def _write(self, kind: Kind, meta: bytes, blobs: Sequence[Blob] = (), copy: bytes | None = None) -> int:
        """Submit a record; return where it starts."""
        position = self._position
        position.sequence += 1
        record = Record(kind, position.sequence, meta, blobs, copy)
        start = position.offset
        self._submit(Write(position.segment, start, record))
        position.offset += record.size
        size = record.size + record.copy_size
        self.segment_sizes[position.segment] = self.segment_sizes.get(position.segment, 0) + size
        return start


def _item_columns(table: Table, slots: Ints) -> tuple[Records, tuple[bytes, ...]]:
    found = table.items.export(slots)
    columns = np.empty(len(slots), dtype=ITEM)
    columns["slot"], columns["number"], columns["times_sampled"] = slots, found.numbers, found.times_sampled
    columns["first_chunk"] = logged(table.store).ids[found.new.first_chunks]
    columns["offset"], columns["length"] = found.new.offsets, found.new.lengths
    columns["priority"] = found.new.priorities
    columns["payload"] = 0
    if found.new.payloads:
        columns["payload"] = [len(payload) for payload in found.new.payloads]
    return columns, found.new.payloads


def describe_state(replay: ReplayState) -> dict[str, Any]:
    """Return the facts about everything before a segment that a restart needs, except chunks and items."""
    return {
        "store_id": replay.store_id,
        "env_steps": replay.env_steps,
        "next_epoch": replay.streams.next_epoch,
        "next_stream": replay.streams.next_stream,
        "tables": [
            {
                **describe_table(table),
                "stats": table.stats.to_array().tolist(),
                "times": table.times.marks,
            }
            for table in replay.tables
        ],
        "next_table": replay.next_table,
        "dropped": _describe_names(replay.dropped_names),
        "epochs": [describe_epoch(epoch) for epoch in replay.streams.epochs],
        **({"closed": [list(astuple(streams)) for streams in closed]} if (closed := replay.streams.closed) else {}),
    }


def _describe_names(names: Mapping[int, TableConfig]) -> list[Any]:
    return [[number, config_to_json(config)] for number, config in names.items()]


def describe_table(table: Table) -> dict[str, Any]:
    """Return a table's configuration and, if it was changed while in use, what its clients know of it."""
    document: dict[str, Any] = {"number": table.number, "config": config_to_json(table.config)}
    if table.declared != table.config or not table.limiter.is_on or table.former:
        document["live"] = {
            "declared": config_to_json(table.declared),
            "rate_limiter_off": not table.limiter.is_on,
            "former": [_difference(config_to_json(former), document["config"]) for former in table.former],
        }
    return document


def _difference(former: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration that differ from the present one; None for one that is not there."""
    names = {**former, **present}
    return {name: former.get(name) for name in names if former.get(name) != present.get(name)}


def describe_epoch(epoch: Epoch) -> dict[str, Any]:
    """Return an epoch and how far its streams are."""
    blocks = logged(epoch.store)
    return {
        "actor_id": epoch.actor_id,
        "number": epoch.number,
        "named": epoch.named,
        "table": blocks.table,
        "chunk_length": epoch.chunk_length,
        "tail_steps": epoch.tail_steps,
        "first_stream": epoch.streams[0].number,
        "next_steps": epoch.next_steps(),
        "ended": [int(stream.ended) for stream in epoch.streams],
    }
