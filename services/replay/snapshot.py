"""Snapshots: priorities, counts of samples and counters of all tables, in one small file each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.replay.items import Items
from services.replay.log_frame import CRC_BYTES, Blob, Kind, Record, blob_is_intact, scan, split_body
from services.replay.log_state import FORMAT, check_format
from services.replay.segment_file import LogFolder

ITEM_STATE = np.dtype([("priority", "<f8"), ("slot", "<u4"), ("number", "<u4"), ("times_sampled", "<u4")])
"""What a snapshot keeps of an item."""

_NAME = re.compile(r"(\d{8,})\.snapshot")
_KEPT = 2
_TEMPORARY = ".tmp"

States = NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class TableSnapshot:
    """One table.

    Attributes:
        number: Its number in the log.
        stats: Its numbers, int64 [STATS_FIELDS].
        slices: `ITEM_STATE` of its items, in pieces.
    """

    number: int
    stats: NDArray[np.int64]
    slices: Sequence[States]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All tables.

    Attributes:
        sequence: Newest record of the log when the counters were read.
        tables: One each.
    """

    sequence: int
    tables: Sequence[TableSnapshot]


def item_states(items: Items, slots: NDArray[np.int64]) -> States:
    """Return what a snapshot keeps of items at slots [N]."""
    states = np.empty(len(slots), dtype=ITEM_STATE)
    states["slot"], states["number"] = slots, items.numbers(slots)
    states["priority"], states["times_sampled"] = items.priorities[slots], items.times_sampled[slots]
    return states


def encode_snapshot(snapshot: Snapshot) -> list[bytes]:
    """Return the bytes of a snapshot's file in pieces."""
    tables = [
        {"number": table.number, "stats": table.stats.tolist(), "slices": [len(piece) for piece in table.slices]}
        for table in snapshot.tables
    ]
    slices = [piece.tobytes() for table in snapshot.tables for piece in table.slices]
    blobs: list[Blob] = list(enumerate(slices))
    meta = json.dumps({"format": FORMAT, "tables": tables}).encode()
    return Record(Kind.SNAPSHOT, snapshot.sequence, meta, blobs).frame()


def decode_snapshot(data: bytes, name: object) -> Snapshot | None:
    """Return what `encode_snapshot` made bytes of, or None if they are damaged.

    Raises:
        FatalError: they have another format.
    """
    view = memoryview(data)
    frames = scan(view).frames
    if len(frames) != 1 or frames[0].kind is not Kind.SNAPSHOT:
        return None
    frame = frames[0]
    document: dict[str, Any] = json.loads(bytes(frame.meta))
    check_format(document["format"], name)
    counts = [count for table in document["tables"] for count in table["slices"]]
    pieces = []
    for number, piece in enumerate(split_body(view, frame, [count * ITEM_STATE.itemsize for count in counts])):
        if not blob_is_intact(number, piece):
            return None
        pieces.append(np.frombuffer(piece[CRC_BYTES:], dtype=ITEM_STATE))
    tables = []
    for table in document["tables"]:
        count = len(table["slices"])
        tables.append(TableSnapshot(table["number"], np.array(table["stats"], dtype=np.int64), pieces[:count]))
        pieces = pieces[count:]
    return Snapshot(frame.sequence, tables)


class SnapshotFiles:
    """The snapshots in a log's folder."""

    def __init__(self, folder: LogFolder) -> None:
        """Look at a folder; what an interrupted write left there is removed."""
        self._folder = folder
        for path in folder.path.glob(f"*.snapshot{_TEMPORARY}"):
            path.unlink()
        self._lock = threading.Lock()  # a call that gave up may have left its thread writing
        self.newest = max(self._numbers(), default=0)
        self.damaged = 0

    def load(self) -> Snapshot | None:
        """Return the newest snapshot that is intact.

        Raises:
            FatalError: it has another format.
        """
        for number in sorted(self._numbers(), reverse=True):
            path = self._path(number)
            snapshot = decode_snapshot(path.read_bytes(), path)
            if snapshot is not None:
                return snapshot
            self.damaged += 1
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
        draft = path.with_name(path.name + _TEMPORARY)
        try:
            with draft.open("wb") as file:
                file.writelines(encode_snapshot(snapshot))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
        self._folder.sync()
        self.newest = number
        for old in sorted(self._numbers())[:-_KEPT]:
            self._path(old).unlink()
        return number

    def _path(self, number: int) -> Path:
        return self._folder.path / f"{number:08d}.snapshot"

    def _numbers(self) -> list[int]:
        found = (_NAME.fullmatch(path.name) for path in self._folder.path.iterdir())
        return [int(match[1]) for match in found if match]
