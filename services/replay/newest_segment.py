"""Names the newest segment of a log in a file of its own, so that its loss is noticed."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from tidemill.services.replay.log_frame import FORMAT

NAME = "newest"
_MAGIC = b"TMLN"
_NOTE = struct.Struct("<4sI8sQQ")  # magic, format, mark, segment, sequence
_CRC = struct.Struct("<I")
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
    note = _NOTE.pack(_MAGIC, FORMAT, newest.mark, newest.segment, newest.sequence)
    path = folder / NAME
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size < _PLACES * _PLACE_BYTES:
            os.posix_fallocate(descriptor, 0, _PLACES * _PLACE_BYTES)
        place = (note + _CRC.pack(zlib.crc32(note))).ljust(_PLACE_BYTES, b"\0")
        os.pwrite(descriptor, place, newest.segment % _PLACES * _PLACE_BYTES)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    return is_new


def read_newest(folder: Path) -> tuple[NewestSegment | None, int]:
    """Return the newest note that is intact, None if there is none, and how many are damaged."""
    try:
        data = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return None, 0
    places = [data[start : start + _PLACE_BYTES] for start in range(0, len(data), _PLACE_BYTES)]
    notes = [_read(place) for place in places]
    damaged = sum(note is None and any(place) for note, place in zip(notes, places, strict=True))
    return max((note for note in notes if note), key=lambda note: note.segment, default=None), damaged


def _read(place: bytes) -> NewestSegment | None:
    end = _NOTE.size + _CRC.size
    if (
        len(place) < end
        or any(place[end:])
        or zlib.crc32(place[: _NOTE.size]) != _CRC.unpack_from(place, _NOTE.size)[0]
    ):
        return None
    magic, found, mark, segment, sequence = _NOTE.unpack_from(place)
    return NewestSegment(mark, segment, sequence) if (magic, found) == (_MAGIC, FORMAT) else None
