"""Snapshots: files with the state that the log does not hold, taken while the server runs.

Priorities and counts of samples change without a record. Arrays are copied slice by slice, files written beside the
event loop.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.atomic_files import TEMPORARY, replacing
from tidemill.errors import described
from tidemill.logger import LateLogger
from tidemill.replay.wire import config_to_json
from tidemill.services.replay.log.frame import (
    CRC_BYTES,
    Blob,
    Chain,
    Kind,
    Record,
    blob_is_intact,
    check_format,
    scan,
    split_body,
)
from tidemill.services.replay.log.journal import Journal
from tidemill.services.replay.log.segments import LogFolder
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.insertion_times import Marks
from tidemill.services.replay.tables.items import Items
from tidemill.services.replay.tables.table import Table

ITEM_STATE = np.dtype([("priority", "<f8"), ("slot", "<u4"), ("number", "<u4"), ("times_sampled", "<u4")])
"""What a snapshot keeps of an item."""

_NAME = re.compile(r"(\d{8,})\.snapshot")
_KEPT = 2

States = NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class TableSnapshot:
    """One table.

    Attributes:
        number: Its number in the log.
        stats: Its numbers, int64 [STATS_FIELDS].
        slices: `ITEM_STATE` of its items, in pieces.
        config: Its configuration as JSON can hold it, for the case that the log has lost it.
        times: When its items came, see `InsertionTimes.marks`.
    """

    number: int
    stats: NDArray[np.int64]
    slices: Sequence[States]
    config: dict[str, Any] = field(default_factory=dict)
    times: Marks = ((), ())

    @property
    def size(self) -> int:
        """Items in it."""
        return sum(len(piece) for piece in self.slices)

    def knows(self, slots: NDArray[np.generic], numbers: NDArray[np.generic]) -> NDArray[np.bool_]:
        """Return a mask [N] of the items, given by slot and number, that were in the table."""
        states = np.concatenate([np.empty(0, dtype=ITEM_STATE), *self.slices])
        return np.isin(_names(slots, numbers), _names(states["slot"], states["number"]))


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All tables.

    Attributes:
        sequence: Newest record of the log when the counters were read.
        tables: One each.
        segment: Segment that has that record, or is about to begin behind it.
        is_last: Whether the server wrote no record after it.
        synced: Record up to which the disk had the log when it was written.
    """

    sequence: int
    tables: Sequence[TableSnapshot]
    segment: int = 0
    is_last: bool = False
    synced: int = 0


def item_states(items: Items, slots: NDArray[np.int64]) -> States:
    """Return the data that a snapshot keeps of items at slots [N]."""
    states = np.empty(len(slots), dtype=ITEM_STATE)
    states["slot"], states["number"] = slots, items.numbers(slots)
    states["priority"], states["times_sampled"] = items.priorities[slots], items.times_arrived(slots)
    return states


def encode_snapshot(snapshot: Snapshot, mark: bytes) -> list[bytes]:
    """Return the bytes of a snapshot's file in pieces."""
    tables = [
        {
            "number": table.number,
            "stats": table.stats.tolist(),
            "slices": [len(piece) for piece in table.slices],
            "config": table.config,
            "times": table.times,
        }
        for table in snapshot.tables
    ]
    slices = [piece.tobytes() for table in snapshot.tables for piece in table.slices]
    blobs: list[Blob] = list(enumerate(slices))
    names = ("segment", "is_last", "synced")
    document = {"tables": tables} | {name: getattr(snapshot, name) for name in names}
    return Chain(mark).frame(Record(Kind.SNAPSHOT, snapshot.sequence, json.dumps(document).encode(), blobs))


def decode_snapshot(data: bytes, mark: bytes, name: object) -> Snapshot | None:
    """Return the snapshot of bytes from `encode_snapshot`, or None if they are corrupt.

    Raises:
        FatalError: they have another format.
    """
    view = memoryview(data)
    found = scan(view, mark)
    if not found.frames:
        check_format(data, name)
    if len(found.frames) != 1 or found.corrupt or found.frames[0].kind is not Kind.SNAPSHOT:
        return None
    frame = found.frames[0]
    document: dict[str, Any] = json.loads(bytes(frame.meta))
    counts = [count for table in document["tables"] for count in table["slices"]]
    pieces = []
    for number, piece in enumerate(split_body(view, frame, [count * ITEM_STATE.itemsize for count in counts])):
        if not blob_is_intact(number, piece):
            return None
        pieces.append(np.frombuffer(piece[CRC_BYTES:], dtype=ITEM_STATE))
    tables = []
    for table in document["tables"]:
        count = len(table["slices"])
        stats = np.array(table["stats"], dtype=np.int64)
        tables.append(
            TableSnapshot(table["number"], stats, pieces[:count], table["config"], table.get("times", ((), ())))
        )
        pieces = pieces[count:]
    return Snapshot(frame.sequence, tables, document["segment"], document["is_last"], document.get("synced", 0))


class SnapshotFiles:
    """The snapshots in a log's folder."""

    def __init__(self, folder: LogFolder, mark: bytes) -> None:
        """Look at a folder for the snapshots of the log that has a mark."""
        self._folder, self._mark = folder, mark
        self._lock = threading.Lock()  # a call that gave up may have left its thread writing
        self.newest = max(self._numbers(), default=0)
        self.corrupt: list[str] = []  # names of those that `load` found corrupt

    def remove_drafts(self) -> None:
        """Delete what an interrupted write left."""
        for path in self._folder.path.glob(f"*.snapshot*{TEMPORARY}"):
            path.unlink()

    def load(self) -> Snapshot | None:
        """Return the newest snapshot that is intact.

        Raises:
            FatalError: it has another format.
        """
        for number in sorted(self._numbers(), reverse=True):
            path = self._path(number)
            snapshot = decode_snapshot(path.read_bytes(), self._mark, path)
            if snapshot is not None:
                return snapshot
            self.corrupt.append(path.name)
        return None

    def write(self, snapshot: Snapshot) -> int:
        """Write a snapshot whole or not at all, and delete old ones; return its number.

        Raises:
            OSError: the disk refused; the older snapshots are still there.
        """
        with self._lock:
            return self._write(snapshot)

    def _write(self, snapshot: Snapshot) -> int:
        number = self.newest + 1
        path = self._path(number)
        with replacing(path) as draft, draft.open("wb") as file:
            file.writelines(encode_snapshot(snapshot, self._mark))
        self.newest = number
        for old in sorted(self._numbers())[:-_KEPT]:
            self._path(old).unlink()
        return number

    def _path(self, number: int) -> Path:
        return self._folder.path / f"{number:08d}.snapshot"

    def _numbers(self) -> list[int]:
        return [int(match[1]) for path in snapshot_paths(self._folder.path) if (match := _NAME.fullmatch(path.name))]


def snapshot_paths(folder: Path) -> list[Path]:
    """Return the snapshots in a folder."""
    return [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]


def _names(slots: NDArray[np.generic], numbers: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Return one number for each pair of slot and insertion number, [N]."""
    return slots.astype(np.uint64) << np.uint64(32) | numbers.astype(np.uint64)


_SLICE = 32_768

_log = LateLogger()


class Snapshotter:
    """Takes one snapshot at a time."""

    def __init__(
        self, replay: ReplayState, journal: Journal, files: SnapshotFiles, kept: Callable[[int], Awaitable[int]]
    ) -> None:
        """Take snapshots of a state whose changes a journal writes.

        Args:
            replay: The state.
            journal: Gives its changes to the writer of the log.
            files: Where the snapshots go.
            kept: Waits until the log has a record, or raises OSError, and returns up to which the disk has it. A
                snapshot ahead of the log would prove to a restart that records are missing.
        """
        self._replay, self._journal, self._files, self._kept = replay, journal, files, kept
        self._lock = asyncio.Lock()
        self.taken = 0
        self._newest: list[bytes] = []  # counters of the tables when the newest was taken

    async def take(self, *, is_last: bool = False) -> int:
        """Write a snapshot; return its number.

        Args:
            is_last: Whether no record is written after it.

        Raises:
            OSError: the disk refused.
        """
        async with self._lock:
            self._replay.log_removed()
            sequence, segment, state = self._journal.sequence, self._journal.segment, self._state()
            tables = [
                (table, table.stats.to_array(), table.items.inserted, table.times.marks)
                for table in self._replay.tables
            ]
            copies = [
                TableSnapshot(table.number, stats, await _copy(table, inserted), config_to_json(table.config), times)
                for table, stats, inserted, times in tables
            ]
            snapshot = Snapshot(sequence, copies, segment, is_last, await self._kept(sequence))
            number = await asyncio.to_thread(self._files.write, snapshot)
            self.taken += 1
            self._newest = state
            return number

    async def take_every(self, interval_s: float) -> None:
        """Take snapshots for ever, but not of what did not change.

        One for which disk or memory is full is logged, and tried again after the next interval.
        """
        while interval_s:
            await asyncio.sleep(interval_s)
            if self._state() == self._newest:
                continue
            try:
                await self.take()
            except (OSError, MemoryError) as error:
                _log.warning("snapshot not written", reason=described(error))

    def _state(self) -> list[bytes]:
        """Return a value that differs after any change of a table."""
        return [table.stats.to_array().tobytes() for table in self._replay.tables]


async def _copy(table: Table, inserted: int) -> list[States]:
    """Copy what a snapshot keeps of the first `inserted` items ever, letting others run between slices.

    Later ones are of records that follow the snapshot: if the power fails before these are on disk, others come that
    have the numbers and slots of theirs.
    """
    items, slices = table.items, []
    for start in range(0, items.capacity, _SLICE):
        if start >= items.used:
            break
        in_use = items.held(start, _SLICE)
        slices.append(item_states(items, in_use[items.ages(in_use) >= items.inserted - inserted]))
        await asyncio.sleep(0)
    return slices
