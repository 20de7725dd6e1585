"""How records lie in a file of the log: framed with length, kind and checksums. No I/O here.

A frame is a header, a *meta* part and a *body*. The header and the meta part have a CRC-32 each. The body holds blobs,
each after a CRC-32 of its own that starts from the blob's identity, so that bytes of another blob are not mistaken for
it. All numbers are little-endian.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MAGIC = b"TMLR"
_HEADER = struct.Struct("<4sB3xQIQI")  # magic, kind, sequence, bytes of meta, bytes of body, checksum of meta
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size
CRC_BYTES = _CRC.size
_CRC_MASK = 0xFFFFFFFF

Blob = tuple[int, bytes]
"""Identity and bytes of one blob of a body."""


class Kind(enum.IntEnum):
    """What a record tells."""

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


@dataclass(frozen=True, slots=True)
class Record:
    """A record about to be written.

    Attributes:
        kind: What it tells.
        sequence: Its number among all records ever written to the log.
        meta: The part that is read at a restart.
        blobs: The body.
    """

    kind: Kind
    sequence: int
    meta: bytes
    blobs: Sequence[Blob] = ()

    @property
    def size(self) -> int:
        """Bytes of its frame."""
        return HEADER_BYTES + len(self.meta) + self.body_size

    @property
    def body_size(self) -> int:
        """Bytes of its body."""
        return sum([CRC_BYTES + len(data) for _, data in self.blobs])

    def frame(self) -> list[bytes]:
        """Return the frame's bytes in pieces; checksums are computed here."""
        header = _HEADER.pack(MAGIC, self.kind, self.sequence, len(self.meta), self.body_size, zlib.crc32(self.meta))
        pieces = [header, _CRC.pack(zlib.crc32(header)), self.meta]
        for identity, data in self.blobs:
            pieces.append(_CRC.pack(blob_checksum(identity, data)))
            pieces.append(data)
        return pieces


def blob_checksum(identity: int, data: bytes | memoryview) -> int:
    """Return the checksum that stands before a blob."""
    return zlib.crc32(data, identity & _CRC_MASK)


def blob_is_intact(identity: int, stored: bytes | memoryview) -> bool:
    """Return whether a checksum and the blob after it, as read from a body, belong together."""
    if len(stored) < CRC_BYTES:
        return False
    return bool(_CRC.unpack_from(stored)[0] == blob_checksum(identity, stored[CRC_BYTES:]))


@dataclass(frozen=True, slots=True)
class Frame:
    """A record found in a file, its header and meta part checked.

    Attributes:
        kind: What it tells.
        sequence: Its number.
        meta: Its meta part.
        start: Where its frame starts in the file.
        body: Where its body starts.
        end: Where the frame ends.
    """

    kind: Kind
    sequence: int
    meta: memoryview
    start: int
    body: int
    end: int


@dataclass(slots=True)
class Scan:
    """What a file holds.

    Attributes:
        frames: The intact frames in order.
        damaged: Complete records whose checksum is wrong, and stretches in which no record starts.
        damaged_bytes: Their bytes.
        damaged_tail: Whether no record starts where the last one ends, although bytes were written there.
        end: Where the last complete frame ends; what follows is a frame that was not written to its end.
    """

    frames: list[Frame] = field(default_factory=list)
    damaged: int = 0
    damaged_bytes: int = 0
    damaged_tail: bool = False
    end: int = 0


def scan(data: memoryview) -> Scan:
    """Find every intact frame of a file."""
    found = Scan()
    position = 0
    while len(data) - position >= HEADER_BYTES:
        header = _read_header(data, position)
        if header is None:
            following = _next_header(data, position + 1)
            if following is None:
                found.damaged_tail = any(data[position:])
                break
            found.damaged += 1
            found.damaged_bytes += following - position
            position = following
            continue
        kind, sequence, meta_bytes, body_bytes, meta_crc = header
        body = position + HEADER_BYTES + meta_bytes
        end = body + body_bytes
        if end > len(data):
            break
        meta = data[position + HEADER_BYTES : body]
        if zlib.crc32(meta) == meta_crc:
            found.frames.append(Frame(Kind(kind), sequence, meta, position, body, end))
        else:
            found.damaged += 1
            found.damaged_bytes += end - position
        position = found.end = end
    return found


def split_body(data: memoryview, frame: Frame, sizes: Sequence[int]) -> Iterator[memoryview]:
    """Yield each blob of a frame together with the checksum before it; `sizes` are those of the blobs alone."""
    start = frame.body
    for size in sizes:
        yield data[start : start + CRC_BYTES + size]
        start += CRC_BYTES + size


def _read_header(data: memoryview, start: int) -> tuple[int, int, int, int, int] | None:
    """Return kind, sequence, sizes of meta and body and the checksum of meta; None if no intact header is there."""
    end = start + _HEADER.size
    if data[start : start + len(MAGIC)] != MAGIC or end + CRC_BYTES > len(data):
        return None
    if zlib.crc32(data[start:end]) != _CRC.unpack_from(data, end)[0]:
        return None
    _, kind, sequence, meta_bytes, body_bytes, meta_crc = _HEADER.unpack_from(data, start)
    return (kind, sequence, meta_bytes, body_bytes, meta_crc) if kind in _KINDS else None


def _next_header(data: memoryview, start: int) -> int | None:
    """Return where the next intact header starts."""
    window = 2**20
    while start < len(data):
        piece = bytes(data[start : start + window + len(MAGIC) - 1])
        at = piece.find(MAGIC)
        while at >= 0:
            if _read_header(data, start + at) is not None:
                return start + at
            at = piece.find(MAGIC, at + 1)
        start += window
    return None
