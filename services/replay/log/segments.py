"""The files of a log: its folder, its segments and their copies, and the note that names the newest."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tidemill import formats, linux
from tidemill.atomic_files import is_there, make_folder, sync_file, sync_folder
from tidemill.errors import FatalError
from tidemill.file_lock import open_locked, unlock
from tidemill.services.replay.log.frame import FORMAT, MARK_BYTES, PREAMBLE_BYTES, format_of

_SEGMENT = re.compile(r"(\d{8,})\.(log|copies)")
_LOCK = ".lock"
_MANIFEST, _EXPORT = "manifest.json", b'"format": "tidemill-replay-table"'
"""A file of an exported table, where a log does not belong, and what it begins with."""


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
        linux.sync_data(self._descriptor)

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


class LogFolder:
    """The folder of a log, locked for as long as this object is open."""

    def __init__(
        self, path: Path, advice: str = "give this one another storage.folder", *, read_only: bool = False
    ) -> None:
        """Make the folder if it is not there, and lock it.

        Args:
            path: Where it is.
            advice: What to do if another process uses it.
            read_only: Whether to make nothing: a folder that no server ever locked is not locked.

        Raises:
            FatalError: it cannot be made or locked, another process uses it, or it is an exported table.
        """
        self.path = path
        self._lock: int | None = None
        try:
            if not read_only:
                _check_no_export(path)
                make_folder(path)
            elif not is_there(path / _LOCK):
                return
            self._lock = _open_lock(path / _LOCK, read_only=read_only)
        except OSError as error:
            raise FatalError(f"cannot use {path} for the replay log: {error.strerror}") from error
        if self._lock is None:
            raise FatalError(f"another replay service uses the log in {path}; {advice}")

    def check_there(self) -> None:
        """Raise OSError if this is no longer the folder that was locked, as after its disk was unmounted."""
        if self._lock is not None and not os.path.samestat(os.fstat(self._lock), os.stat(self.path / _LOCK)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self.path))

    @property
    def has_log(self) -> bool:
        """Whether any file of a log is there, be it only the note of its newest segment."""
        return bool(self.segments()) or is_there(self.path / NEWEST)

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
        """Delete what is there of a segment, copies first: alone they would mean that their records are lost."""
        for path in (self.copies(number), self.segment(number)):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def sync(self) -> None:
        """Wait until the disk has the names of new files."""
        sync_folder(self.path)

    def sync_newest(self) -> None:
        """Wait until the disk has the newest segment, which a killed process may have left unsynced, and all names."""
        for number in self.segments()[-1:]:
            for path in filter(is_there, (self.segment(number), self.copies(number))):
                with path.open("rb") as file:
                    sync_file(file)
            self.sync()

    def close(self) -> None:
        """Unlock."""
        if self._lock is not None:
            unlock(self._lock)


def _check_no_export(path: Path) -> None:
    if is_there(path / _LOCK):
        return
    start = b""
    with contextlib.suppress(OSError), (path / _MANIFEST).open("rb") as file:
        start = file.read(2 * len(_EXPORT))
    if _EXPORT in start:
        raise FatalError(
            f"{path} holds no replay log but an exported table: set storage.folder to another folder, start the server "
            f"and run `tidemill replay import ADDRESS {path}`"
        )


def _open_lock(path: Path, *, read_only: bool) -> int | None:
    if not read_only:
        return open_locked(path)
    try:
        return open_locked(path, os.O_RDWR)  # NFS locks nothing that is open to read alone
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return open_locked(path, os.O_RDONLY)


class SegmentPair:
    """Files that are written together. Only the records are waited for: copies matter where records are corrupt."""

    def __init__(self, folder: LogFolder, newest: NewestSegment, open_file: Callable[..., SegmentFile]) -> None:
        """Open the files of a segment that begins, and wait until the disk knows of it.

        Raises:
            OSError: the disk refused.
        """
        self.number = newest.segment
        self._copies_end = 0
        with ExitStack() as opened:
            self._records = open_file(folder.segment(self.number))
            opened.callback(self._records.close)
            self._copies = open_file(folder.copies(self.number))
            opened.callback(self._copies.close)
            folder.begin(newest)
            opened.pop_all()

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


NEWEST = "newest"
_NOTE_MAGIC = b"TMLN"
_NOTE = struct.Struct("<4sI8sQQ")  # magic, format, mark, segment, sequence
_NOTE_CRC = struct.Struct("<I")
_PLACE_BYTES = 512
_PLACES = 2


@dataclass(frozen=True, slots=True)
class NewestSegment:
    """A note.

    Attributes:
        mark: Of the log.
        segment: Number of the newest segment.
        sequence: Its first record; every one before it was synced by then.
    """

    mark: bytes
    segment: int
    sequence: int


def write_newest(folder: Path, newest: NewestSegment) -> bool:
    """Note a segment; return whether the file is new, so that the folder is to be synced.

    Two places are written by turns, never to another size: a full disk does not refuse it, and a note that was not
    written to its end leaves the one before.

    Raises:
        OSError: the disk refused.
    """
    note = _NOTE.pack(_NOTE_MAGIC, FORMAT, newest.mark, newest.segment, newest.sequence)
    path = folder / NEWEST
    is_new = not is_there(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size < _PLACES * _PLACE_BYTES:
            linux.reserve_space(descriptor, _PLACES * _PLACE_BYTES)
        place = (note + _NOTE_CRC.pack(zlib.crc32(note))).ljust(_PLACE_BYTES, b"\0")
        os.pwrite(descriptor, place, newest.segment % _PLACES * _PLACE_BYTES)
        linux.sync_data(descriptor)
    finally:
        os.close(descriptor)
    return is_new


def read_newest(folder: Path) -> tuple[NewestSegment | None, int]:
    """Return the newest note that is intact, None if there is none, and how many are corrupt.

    Raises:
        FatalError: An intact note has another format than this server reads.
    """
    path = folder / NEWEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None, 0
    places = [data[start : start + _PLACE_BYTES] for start in range(0, len(data), _PLACE_BYTES)]
    notes = [_read_note(place, path) for place in places]
    corrupt = sum(note is None and any(place) for note, place in zip(notes, places, strict=True))
    return max((note for note in notes if note), key=lambda note: note.segment, default=None), corrupt


def _read_note(place: bytes, where: Path) -> NewestSegment | None:
    end = _NOTE.size + _NOTE_CRC.size
    if (
        len(place) < end
        or any(place[end:])
        or zlib.crc32(place[: _NOTE.size]) != _NOTE_CRC.unpack_from(place, _NOTE.size)[0]
    ):
        return None
    magic, found, mark, segment, sequence = _NOTE.unpack_from(place)
    if magic != _NOTE_MAGIC:
        return None
    formats.check_format(formats.REPLAY_LOG, found, where)
    return NewestSegment(mark, segment, sequence)


_HEAD_BYTES = 4096


def new_mark() -> bytes:
    """Return the mark of a new log: random, so that no actor can put it into what it appends."""
    return os.urandom(MARK_BYTES)


def find_mark(folder: Path, files: Iterable[Path]) -> bytes | None:
    """Return the mark that most of a log's files have in their heads; None if there are none.

    Only what stands where a mark belongs is a candidate: the preamble's end and the first frame's start. A file counts
    once however often its head has a mark: one that a broken disk filled with a byte would outvote all the others.
    """
    heads = [_head(path) for path in files]
    places = (PREAMBLE_BYTES - MARK_BYTES, PREAMBLE_BYTES)
    candidates = {head[at : at + MARK_BYTES] for head in heads for at in places}
    newest, _ = read_newest(folder)
    if newest is not None:
        candidates.add(newest.mark)
        heads.append(newest.mark)
    likely = sorted(mark for mark in candidates if len(mark) == MARK_BYTES and any(mark))
    return max(likely, key=lambda mark: sum(mark in head for head in heads), default=None)


def check_formats(files: Iterable[Path], newest: NewestSegment | None) -> None:
    """Refuse a log of another format than this server reads.

    The number in a preamble has no checksum, so a single one may be a misread byte: what most files say counts, the
    note of the newest segment among them.

    Raises:
        FatalError: It has another format.
    """
    said = {path: number for path in files if (number := format_of(_head(path))) is not None}
    other = [path for path, number in said.items() if number != FORMAT]
    if 2 * len(other) > len(said) + (newest is not None):
        formats.check_format(formats.REPLAY_LOG, said[other[0]], other[0])


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)
