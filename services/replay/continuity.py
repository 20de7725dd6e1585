"""Follows the records of a log in order, and says up to where each table's items can no longer be trusted.

A record that is missing may have told that items went. An item that came before it is trusted only if the table's count
of what went is the same on both sides of the gap, or if a snapshot taken behind the gap knows the item.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.services.replay.log_frame import Frame


@dataclass(slots=True)
class Told:
    """What the log last told of a table.

    Attributes:
        size: Items in it.
        removed_so_far: Slots that were ever told to be emptied.
        sequence: Record that told it.
    """

    size: int
    removed_so_far: int
    sequence: int


@dataclass(slots=True)
class Gap:
    """Records that are not there.

    Attributes:
        first: The first of them.
        last: The last of them.
    """

    first: int
    last: int


@dataclass(slots=True)
class Continuity:
    """What is known of the chain of records.

    Attributes:
        sequence: Newest record, 0 before the first.
        link: Checksum of its header.
        told: The newest of each table, by its number.
        breaks: By number of a table, the record from which on its items are trusted without a snapshot.
        gaps: Where records are missing.
        fork: Before this record nothing is trusted: there are records of two lives of the log.
    """

    sequence: int = 0
    link: int = 0
    told: dict[int, Told] = field(default_factory=dict)
    breaks: dict[int, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    fork: int = 0
    _doubtful: dict[int, int] = field(default_factory=dict)  # tables that told nothing since a gap, and the gap's end

    def follows(self, frame: Frame) -> bool:
        """Take the next frame; return False if what it tells is known already or is out of order."""
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
        self._doubt(last)
        self.sequence = last

    def tell(self, table: int, size: int, removed_before: int, removed_so_far: int) -> None:
        """Note what the newest record tells of a table: how much had gone before it, and afterwards."""
        known = self.told.get(table)
        doubtful = self._doubtful.pop(table, None)
        if doubtful is not None and known is not None and known.removed_so_far != removed_before:
            self.breaks[table] = doubtful
        self.told[table] = Told(size, removed_so_far, self.sequence)

    def end(self) -> None:
        """Note that nothing more comes: a table that told nothing since a gap cannot be trusted before it."""
        self.breaks.update(self._doubtful)
        self._doubtful.clear()

    @property
    def missing_records(self) -> int:
        """How many records are not there."""
        return sum(gap.last - gap.first + 1 for gap in self.gaps)

    def _doubt(self, last: int) -> None:
        self._doubtful.update(dict.fromkeys(self.told, last))
