"""Framing of records in a file of the log: length, kind and checksums. No I/O here.

A file begins with a preamble that names the format and the log's *mark*: random bytes that no actor knows, with which
every frame of the log begins, so that bytes of an actor's are never taken for a frame. A frame is a header, a *meta*
part and a *body*. The header and the meta part have a CRC-32 each. The body holds blobs, each after its own CRC-32
that starts from the blob's identity, so that bytes of another blob are not mistaken for it. A header repeats the
checksum of the header of the record before, its *link*, and says how many records before it the disk may not have had
when it was written: only these may be missing after a loss of power. A record may have a *copy*, a frame of the same
number in another file: what must not be lost with the record. All numbers are little-endian.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tidemill import formats

MAGIC = b"TMLR"
FORMAT = formats.NEWEST[formats.REPLAY_LOG]
"""Number of the files' format."""

MARK_BYTES = 8
_PREAMBLE = struct.Struct("<4sI8s")  # magic, format, mark
# mark, kind, whether it is a copy, unsynced, sequence, link, bytes of meta, bytes of body, checksum of meta
_HEADER = struct.Struct("<8sB?HQIIQI")
_CRC = struct.Struct("<I")
PREAMBLE_BYTES = _PREAMBLE.size
HEADER_BYTES = _HEADER.size + _CRC.size
CRC_BYTES = _CRC.size
_CRC_MASK = 0xFFFFFFFF
_NOT_SAID, _MANY = 0, 0xFFFF
"""For the records before one that the disk may not have; any other value is one more than their number."""

Blob = tuple[int, bytes]
"""Identity and bytes of one blob of a body."""


class Kind(enum.IntEnum):
    """Kind of a record."""

    SEGMENT = 1
    """The state at the start of a segment."""
    TABLE = 2
    """A table was created or has a new configuration."""
    EPOCH = 3
    """Streams were opened."""
    CHANGES = 4
    """Chunks and items came, items went."""
    SNAPSHOT = 5
    """Priorities and counters of all tables."""


_KINDS = frozenset(Kind)
_FIRST_IN_FILE = (Kind.SEGMENT, Kind.SNAPSHOT)


@dataclass(frozen=True, slots=True)
class Record:
    """A record about to be written.

    Attributes:
        kind: What it reports.
        sequence: Its number among all records ever written to the log.
        meta: The part that is read at a restart.
        blobs: The body.
        copy: What is written to another file as well, in case it becomes corrupt; None for no copy.
    """

    kind: Kind
    sequence: int
    meta: bytes
    blobs: Sequence[Blob] = ()
    copy: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of its frame, and of the preamble where it is the first in a file."""
        return self._preamble_size + HEADER_BYTES + len(self.meta) + self.body_size

    @property
    def copy_size(self) -> int:
        """Bytes of its copy's frame, and of the preamble where it is the first in a file."""
        return self._preamble_size + HEADER_BYTES + len(self.copy) if self.copy is not None else 0

    @property
    def body_size(self) -> int:
        """Bytes of its body."""
        return sum([CRC_BYTES + len(data) for _, data in self.blobs])

    @property
    def _preamble_size(self) -> int:
        return PREAMBLE_BYTES if self.kind in _FIRST_IN_FILE else 0


@dataclass(slots=True)
class Chain:
    """Frames records one after another, so that each names the one before.

    Attributes:
        mark: Of the log.
        link: Checksum of the header of the newest record, 0 before the first.
    """

    mark: bytes
    link: int = 0

    def frame(self, record: Record, synced: int | None = None) -> list[bytes]:
        """Return a record's bytes in pieces; checksums are computed here.

        Args:
            record: The record.
            synced: The record up to which the disk has everything; None to leave it unsaid.
        """
        pieces = self._head(record, record.meta, record.body_size, synced, is_copy=False)
        self.link = _CRC.unpack(pieces[-2])[0]
        for identity, data in record.blobs:
            pieces.append(_CRC.pack(blob_checksum(identity, data)))
            pieces.append(data)
        return pieces

    def copy(self, record: Record, synced: int | None = None) -> list[bytes]:
        """Return the bytes of a record's copy in pieces; to be called after `frame` of the same record."""
        return self._head(record, record.copy, 0, synced, is_copy=True) if record.copy is not None else []

    def _head(self, record: Record, meta: bytes, body_bytes: int, synced: int | None, *, is_copy: bool) -> list[bytes]:
        unsynced = _NOT_SAID if synced is None else min(record.sequence - synced, _MANY)
        sizes = (len(meta), body_bytes, zlib.crc32(meta))
        header = _HEADER.pack(self.mark, record.kind, is_copy, unsynced, record.sequence, self.link, *sizes)
        first = [preamble(self.mark)] if record.kind in _FIRST_IN_FILE else []
        return [*first, header, _CRC.pack(zlib.crc32(header)), meta]


def preamble(mark: bytes) -> bytes:
    """Return the first bytes of a file."""
    return _PREAMBLE.pack(MAGIC, FORMAT, mark)


def check_format(data: bytes | memoryview, where: object) -> None:
    """Raise FatalError if a file in which no frame was found has another format than this server reads."""
    if (found := format_of(data)) is not None:
        formats.check_format(formats.REPLAY_LOG, found, where)


def format_of(data: bytes | memoryview) -> int | None:
    """Return the number that a file's preamble has; None if it has none that is whole."""
    if len(data) < PREAMBLE_BYTES:
        return None
    magic, found, _ = _PREAMBLE.unpack_from(data)
    return int(found) if magic == MAGIC else None


def blob_checksum(identity: int, data: bytes | memoryview) -> int:
    """Return the checksum that stands before a blob."""
    return zlib.crc32(data, identity & _CRC_MASK)


def blob_is_intact(identity: int, stored: bytes | memoryview) -> bool:
    """True if a blob matches the checksum before it, as both are read from a record's body."""
    if len(stored) < CRC_BYTES:
        return False
    return bool(_CRC.unpack_from(stored)[0] == blob_checksum(identity, stored[CRC_BYTES:]))


@dataclass(frozen=True, slots=True)
class Frame:
    """A record, or a copy, found in a file, its header and meta part checked.

    Attributes:
        kind: What it reports.
        is_copy: Whether it is the copy of a record.
        sequence: Its number.
        synced: Record up to which the disk had everything when it was written; 0 if that was too long ago to be said.
        link: Checksum of the header of the record before it; for a copy, of the record itself.
        checksum: Of its header.
        meta: Its meta part.
        start: Where its frame starts in the file.
        body: Where its body starts.
        end: Where the frame ends.
    """

    kind: Kind
    is_copy: bool
    sequence: int
    synced: int
    link: int
    checksum: int
    meta: memoryview
    start: int
    body: int
    end: int


@dataclass(slots=True)
class Scan:
    """Contents of a file.

    Attributes:
        frames: The intact frames in order.
        corrupt: Start and end of complete frames whose checksum is wrong, and of stretches in which no frame starts.
        corrupt_tail: Whether no frame starts where the last one ends, although bytes were written there.
        end: Where the last complete frame ends; what follows is a frame that was not written to its end.
        cut: The first record that was left out with all behind it, because they were not synced; 0 for none.
    """

    frames: list[Frame] = field(default_factory=list)
    corrupt: list[tuple[int, int]] = field(default_factory=list)
    corrupt_tail: bool = False
    end: int = 0
    cut: int = 0


def scan(data: memoryview, mark: bytes) -> Scan:
    """Find every intact frame of a file of the log that has a mark."""
    found = Scan()
    position = PREAMBLE_BYTES if data[:PREAMBLE_BYTES] == preamble(mark) else 0
    while len(data) - position >= HEADER_BYTES:
        header = _read_header(data, position, mark)
        if header is None:
            following = _next_header(data, position + 1, mark)
            if following is None:
                found.corrupt_tail = any(data[position:])
                break
            found.corrupt.append((position, following))
            position = following
            continue
        frame, meta_crc = header
        if frame.end > len(data):
            break
        if zlib.crc32(frame.meta) == meta_crc:
            found.frames.append(frame)
        else:
            found.corrupt.append((position, frame.end))
        position = found.end = frame.end
    return found


def split_body(data: memoryview, frame: Frame, sizes: Sequence[int]) -> Iterator[memoryview]:
    """Yield each blob of a frame together with the checksum before it; `sizes` are those of the blobs alone."""
    start = frame.body
    for size in sizes:
        yield data[start : start + CRC_BYTES + size]
        start += CRC_BYTES + size


def _read_header(data: memoryview, start: int, mark: bytes) -> tuple[Frame, int] | None:
    """Return the frame of which an intact header is here, and the checksum its meta part must have."""
    end = start + _HEADER.size
    if data[start : start + MARK_BYTES] != mark or end + CRC_BYTES > len(data):
        return None
    checksum = zlib.crc32(data[start:end])
    if checksum != _CRC.unpack_from(data, end)[0]:
        return None
    _, kind, is_copy, unsynced, sequence, link, meta_bytes, body_bytes, meta_crc = _HEADER.unpack_from(data, start)
    if kind not in _KINDS:
        return None
    meta = start + HEADER_BYTES
    body = meta + meta_bytes
    synced = 0 if unsynced == _MANY else sequence - max(unsynced, 1)  # not said: as if all had been synced
    place = (data[meta:body], start, body, body + body_bytes)
    return Frame(Kind(kind), is_copy, sequence, synced, link, checksum, *place), meta_crc


def _next_header(data: memoryview, start: int, mark: bytes) -> int | None:
    """Return the position of the next intact header."""
    window = 2**20
    while start < len(data):
        piece = bytes(data[start : start + window + MARK_BYTES - 1])
        at = piece.find(mark)
        while at >= 0:
            if _read_header(data, start + at, mark) is not None:
                return start + at
            at = piece.find(mark, at + 1)
        start += window
    return None
