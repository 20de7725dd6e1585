"""Records what is corrupt or missing in a log, and repairs its files before it is written to again."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.services.replay.log.frame import Frame

UNREADABLE = ".unreadable"
"""Suffix of files that are set aside because they are not segments of this log."""

_MAX_NOTES = 1000


@dataclass(slots=True)
class Corruption:
    """Everything that was found to be corrupt or missing.

    Attributes:
        records: Complete records whose checksum is wrong, stretches in which no record starts, and other corrupt files.
        torn_bytes: Bytes at the end of the last segment that were not written to their end, and are cut.
        missing_records: Records that are lost, as far as can be known; copies of some may exist.
        missing_segments: Numbers of the segments that are missing.
        notes: What is corrupt and where, one line each; the first thousand.
    """

    records: int = 0
    torn_bytes: int = 0
    missing_records: int = 0
    missing_segments: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_any(self) -> bool:
        """Whether anything was lost except an unfinished record at the end."""
        return bool(self.records or self.missing_records or self.missing_segments)

    def add(self, note: str) -> None:
        """Count something that is corrupt."""
        self.records += 1
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(note)


class Mend(enum.Enum):
    """Repair of a file."""

    CUT = "cut"
    """Truncate it: what follows is an unfinished record."""
    REMOVE = "remove"
    """Delete it: it is empty."""
    SET_ASIDE = "set aside"
    """Rename it: it is not a segment of this log, or not the one its name says."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair of a file before the log is written to again.

    Attributes:
        path: The file.
        mend: How it is repaired.
        at: Where it is cut.
    """

    path: Path
    mend: Mend
    at: int = 0


def carry_out(repairs: list[Repair]) -> None:
    """Carry out repairs. OSError: a file cannot be changed."""
    for repair in repairs:
        if repair.mend is Mend.CUT:
            os.truncate(repair.path, repair.at)
        elif repair.mend is Mend.REMOVE:
            repair.path.unlink()
        else:
            repair.path.replace(repair.path.with_name(repair.path.name + UNREADABLE))


@dataclass(slots=True)
class TableReport:
    """The log's newest report on a table.

    Attributes:
        size: Items in it.
        removed_so_far: Slots ever reported as emptied.
        sequence: The record that reported it.
    """

    size: int
    removed_so_far: int
    sequence: int


@dataclass(slots=True)
class Gap:
    """A run of missing records.

    Attributes:
        first: The first missing record.
        last: The last missing record.
    """

    first: int
    last: int


@dataclass(slots=True)
class Continuity:
    """Known part of the chain of records.

    Attributes:
        sequence: Newest record, 0 before the first.
        link: Checksum of its header.
        reports: The newest of each table, by its number.
        breaks: For each table, by number, the first record whose items are trusted without a snapshot.
        gaps: Where records are missing.
        fork: Nothing before this record is trusted: the log holds records of two histories.
    """

    sequence: int = 0
    link: int = 0
    reports: dict[int, TableReport] = field(default_factory=dict)
    breaks: dict[int, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    fork: int = 0
    _doubtful: dict[int, int] = field(default_factory=dict)  # tables without a report since a gap, and the gap's end

    def follows(self, frame: Frame) -> bool:
        """Take the next frame; return False if it is known already or out of order."""
        if frame.sequence <= self.sequence:
            if not frame.is_copy or (frame.sequence == self.sequence and frame.link != self.link):
                self.fork = self.sequence + 1
            return False
        if self.sequence and frame.sequence > self.sequence + 1:
            self.gap(frame.sequence - 1)
        elif self.sequence and frame.link != self.link and not frame.is_copy:
            self.gaps.append(Gap(frame.sequence, frame.sequence))  # it follows another record than the one we have
            self.fork = frame.sequence
        self.sequence = frame.sequence
        self.link = frame.link if frame.is_copy else frame.checksum
        return True

    def gap(self, last: int) -> None:
        """Note that every record up to one is missing."""
        self.gaps.append(Gap(self.sequence + 1, last))
        self._doubtful.update(dict.fromkeys(self.reports, last))
        self.sequence = last

    def report(self, table: int, size: int, removed_before: int, removed_so_far: int) -> None:
        """Note what the newest record reports on a table: how many slots were emptied before it, and with it."""
        known = self.reports.get(table)
        doubtful = self._doubtful.pop(table, None)
        if doubtful is not None and known is not None and known.removed_so_far != removed_before:
            self.breaks[table] = doubtful
        self.reports[table] = TableReport(size, removed_so_far, self.sequence)

    def end(self) -> None:
        """Note the end of the log: a table without a report since a gap cannot be trusted before it."""
        self.breaks.update(self._doubtful)
        self._doubtful.clear()

    @property
    def missing_records(self) -> int:
        """Number of missing records."""
        return sum(gap.last - gap.first + 1 for gap in self.gaps)
