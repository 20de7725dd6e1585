"""Takes snapshots while the server continues: arrays are copied slice by slice, files written beside the event loop."""

from __future__ import annotations

import asyncio

import numpy as np
import structlog

from tidemill.replay.wire import config_to_json
from tidemill.services.replay.log.journal import Journal
from tidemill.services.replay.log.snapshot import Snapshot, SnapshotFiles, States, TableSnapshot, item_states
from tidemill.services.replay.state import ReplayState
from tidemill.services.replay.tables.table import Table

_SLICE = 32_768

_log = structlog.get_logger()


class Snapshotter:
    """Takes one snapshot at a time."""

    def __init__(self, replay: ReplayState, journal: Journal, files: SnapshotFiles) -> None:
        """Take snapshots of a state whose changes a journal writes."""
        self._replay, self._journal, self._files = replay, journal, files
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
            sequence, segment = self._journal.sequence, self._journal.segment
            tables = [(self._replay.number_of(table), table, table.stats.to_array()) for table in self._replay.tables]
            copies = [
                TableSnapshot(number, stats, await _copy(table), config_to_json(table.config))
                for number, table, stats in tables
            ]
            snapshot = Snapshot(sequence, copies, segment, is_last)
            number = await asyncio.to_thread(self._files.write, snapshot)
            self.taken += 1
            self._newest = self._state()
            return number

    async def take_every(self, interval_s: float) -> None:
        """Take snapshots for ever, but not of what did not change.

        One that the disk refuses is logged, and tried again after the next interval.
        """
        while interval_s:
            await asyncio.sleep(interval_s)
            if self._state() == self._newest:
                continue
            try:
                await self.take()
            except OSError as error:
                _log.warning("no snapshot", reason=error.strerror)

    def _state(self) -> list[bytes]:
        """Return what differs whenever anything happened to a table."""
        return [table.stats.to_array().tobytes() for table in self._replay.tables]


async def _copy(table: Table) -> list[States]:
    """Copy what a snapshot keeps of a table's items, letting others run between slices."""
    items, slices = table.items, []
    for start in range(0, items.capacity, _SLICE):
        if start >= items.used:
            break
        in_use = np.flatnonzero(items.lengths[start : min(start + _SLICE, items.used)]) + start
        slices.append(item_states(items, in_use))
        await asyncio.sleep(0)
    return slices
