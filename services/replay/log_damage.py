"""What is found broken in a log, and what is done to its files before it goes on."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field
from pathlib import Path

UNREADABLE = ".unreadable"
"""Suffix of files that are set aside because they are no segment of this log."""

_MAX_NOTES = 1000


@dataclass(slots=True)
class Damage:
    """What was found broken.

    Attributes:
        records: Complete records whose checksum is wrong, stretches in which no record starts, and other broken files.
        record_bytes: Their bytes.
        torn_bytes: Bytes at the end of the last segment that were not written to their end, and are cut.
        missing_records: Records that are lost, as far as it can be told, though copies of some may be there.
        missing_segments: Segments that are not there, by their numbers.
        notes: What is broken where, one line each; the first thousand.
    """

    records: int = 0
    record_bytes: int = 0
    torn_bytes: int = 0
    missing_records: int = 0
    missing_segments: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_any(self) -> bool:
        """Whether anything was lost but an end that was not written."""
        return bool(self.records or self.missing_records or self.missing_segments)

    def add(self, note: str, records: int = 1, size_bytes: int = 0) -> None:
        """Count something broken."""
        self.records += records
        self.record_bytes += size_bytes
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(note)


class Mend(enum.Enum):
    """What is done to a file."""

    CUT = "cut"
    """End it at a place: what follows was not written to its end."""
    REMOVE = "remove"
    """Delete it: there is nothing in it."""
    SET_ASIDE = "set aside"
    """Give it another name: it is no segment of this log, or not the one of its name."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing to do to a file before the log goes on.

    Attributes:
        path: The file.
        mend: What is done.
        at: Where it is cut.
    """

    path: Path
    mend: Mend
    at: int = 0


def carry_out(repairs: list[Repair]) -> None:
    """Do to the files what was found necessary. OSError: the disk refused."""
    for repair in repairs:
        if repair.mend is Mend.CUT:
            os.truncate(repair.path, repair.at)
        elif repair.mend is Mend.REMOVE:
            repair.path.unlink()
        else:
            repair.path.replace(repair.path.with_name(repair.path.name + UNREADABLE))
