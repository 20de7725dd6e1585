"""One file of the log, its name, and the folder it lies in."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from pathlib import Path

from tidemill.errors import FatalError
from tidemill.services.replay.newest_segment import NAME, NewestSegment, write_newest

_SEGMENT = re.compile(r"(\d{8,})\.(log|copies)")
_LOCK = ".lock"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """Return whether the operating system says that there is no room."""
    return error.errno in _DISK_FULL


class SegmentFile:
    """A file that is written at given places."""

    def __init__(self, path: Path) -> None:
        """Open it, and create it if it is not there."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`. OSError: the disk refused; part of it may have been written."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written

    def sync(self) -> None:
        """Wait until the disk has what was written."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


class LogFolder:
    """The folder of a log, locked for as long as this object is open."""

    def __init__(self, path: Path, advice: str = "give this one another storage.folder") -> None:
        """Make the folder if it is not there, and lock it.

        Args:
            path: Where it is.
            advice: What to do if another process uses it.

        Raises:
            FatalError: it cannot be made, or another process uses it.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise FatalError(f"cannot use {path} for the replay log: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise FatalError(f"another replay service uses the log in {path}; {advice}") from error

    @property
    def has_log(self) -> bool:
        """Whether any file of a log is there, be it only the note of its newest segment."""
        return bool(self.segments()) or (self.path / NAME).exists()

    def segment(self, number: int) -> Path:
        """Return the path of a segment."""
        return self.path / f"{number:08d}.log"

    def copies(self, number: int) -> Path:
        """Return the path of the copies of a segment's records."""
        return self.path / f"{number:08d}.copies"

    def segments(self) -> list[int]:
        """Return the numbers of the segments of which any file is there, in order."""
        found = (_SEGMENT.fullmatch(path.name) for path in self.path.iterdir())
        return sorted({int(match[1]) for match in found if match})

    def begin(self, newest: NewestSegment) -> None:
        """Wait until the disk has the name of a new segment, and note it as the newest.

        Raises:
            OSError: the disk refused.
        """
        self.sync()
        if write_newest(self.path, newest):
            self.sync()

    def remove(self, number: int) -> None:
        """Delete what is there of a segment."""
        for path in (self.segment(number), self.copies(number)):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def sync(self) -> None:
        """Wait until the disk has the names of new files."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Unlock."""
        os.close(self._lock)
