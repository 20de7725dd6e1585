"""The two files of the segment that grows: its records, and beside them their copies."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.services.replay.newest_segment import NewestSegment
from tidemill.services.replay.segment_file import LogFolder, SegmentFile


class SegmentPair:
    """Files that are written together. Only the records are waited for: copies matter where records are damaged."""

    def __init__(self, folder: LogFolder, newest: NewestSegment, open_file: Callable[..., SegmentFile]) -> None:
        """Open the files of a segment that begins, and wait until the disk knows of it.

        Raises:
            OSError: the disk refused.
        """
        self.number = newest.segment
        self._copies_end = 0
        self._records = open_file(folder.segment(self.number))
        self._copies = open_file(folder.copies(self.number))
        try:
            folder.begin(newest)
        except BaseException:
            self.close()
            raise

    def write(self, offset: int, records: bytes, copies: bytes) -> None:
        """Write records at a place and their copies behind those before.

        Raises:
            OSError: the disk refused; part of it may have been written. The same call may be repeated.
        """
        self._records.write(offset, records)
        self._copies.write(self._copies_end, copies)
        self._copies_end += len(copies)

    def sync(self) -> None:
        """Wait until the disk has the records that were written."""
        self._records.sync()

    def sync_copies(self) -> None:
        """Wait until the disk has the copies that were written."""
        self._copies.sync()

    def close(self) -> None:
        """Close both files."""
        self._records.close()
        self._copies.close()
