"""A version being received: its header, and its bytes, which are written straight to disk."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tidemill.atomic_files import remove, sync_file
from tidemill.errors import DataLoss, InvalidArgument, Reason, ResourceExhausted
from tidemill.params.version import Encoding, ParamsMetadata, Precision
from tidemill.services.paramserver.version_files import full_disk_reported

MAX_TEXT_CHARACTERS = 256
"""Longest text in metadata and longest publisher name."""

_SHA256_BYTES = 32


@dataclass(frozen=True)
class PublishRequest:
    """The header of a publish.

    Attributes:
        fencing_token: The publisher's.
        base_version: Newest version the publisher knows of; 0 for none.
        metadata: What the parameters are.
        encodings: Encodings in the order in which their bytes follow, full precision first.
    """

    fencing_token: int
    base_version: int
    metadata: ParamsMetadata
    encodings: tuple[Encoding, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all encodings together."""
        return sum(encoding.size_bytes for encoding in self.encodings)

    def check(self, max_blob_bytes: int) -> None:
        """Refuse a request whose fields are out of range, before memory or disk is taken for it.

        Raises:
            InvalidArgument: A field is out of range.
            ResourceExhausted: An encoding is larger than `max_blob_bytes`.
        """
        _expect(self.fencing_token >= 1, "fencing_token", self.fencing_token, "1 or more, from AcquireFencingToken")
        for name, value in dataclasses.asdict(self.metadata).items():
            if isinstance(value, str):
                check_text(f"metadata.{name}", value)
        precisions = [encoding.precision for encoding in self.encodings]
        named = [precision.value for precision in precisions]
        _expect(precisions[:1] == [Precision.FULL], "encodings", named, "full precision first")
        _expect(len(set(precisions)) == len(precisions), "encodings", named, "each precision at most once")
        for encoding in self.encodings:
            _check_encoding(encoding, max_blob_bytes)


def check_text(field: str, value: str) -> None:
    """Refuse a text longer than `MAX_TEXT_CHARACTERS`.

    Raises:
        InvalidArgument: It is longer.
    """
    if len(value) > MAX_TEXT_CHARACTERS:
        raise InvalidArgument(
            f"{field} has {len(value)} characters ({value[:32]!r}...), allowed: {MAX_TEXT_CHARACTERS}"
        )


def _check_encoding(encoding: Encoding, max_blob_bytes: int) -> None:
    field = f"encodings[{encoding.precision.value}]"
    _expect(encoding.size_bytes >= 1, f"{field}.size_bytes", encoding.size_bytes, "1 or more")
    if encoding.size_bytes > max_blob_bytes:
        raise ResourceExhausted(
            f"{field}.size_bytes is {encoding.size_bytes}, allowed: at most paramserver.max_blob_bytes, "
            f"{max_blob_bytes}",
            reason=Reason.TOO_LARGE,
        )
    length = len(encoding.sha256)
    _expect(length == _SHA256_BYTES, f"length of {field}.sha256", length, f"{_SHA256_BYTES} bytes")


def _expect(is_valid: bool, field: str, value: object, allowed: str) -> None:
    if not is_valid:
        raise InvalidArgument(f"{field} is {value!r}, allowed: {allowed}")


class Upload:
    """Writes the bytes of a request's encodings, in order, to separate files, created with their first byte.

    Not finished until `finish`; `discard` removes whatever was not moved elsewhere.
    """

    def __init__(self, folder: Path, request: PublishRequest) -> None:
        self.request = request
        self._received_bytes = 0
        self._parts = [_Part(folder / f"{item.precision.value}.safetensors", item) for item in request.encodings]

    @property
    def paths(self) -> dict[Precision, Path]:
        """Where each encoding's bytes are."""
        return {part.encoding.precision: part.path for part in self._parts}

    def write(self, piece: bytes) -> None:
        """Append the next bytes.

        Raises:
            InvalidArgument: They are more than the request declared; none of them was written.
            ResourceExhausted: The disk is full.
        """
        declared = self.request.size_bytes
        if self._received_bytes + len(piece) > declared:
            raise InvalidArgument(
                f"the pieces hold at least {self._received_bytes + len(piece)} bytes, declared: {declared}"
            )
        self._received_bytes += len(piece)
        rest = memoryview(piece)
        with full_disk_reported():
            for part in self._parts:
                rest = rest[part.take(rest) :]

    def finish(self) -> None:
        """Check sizes and checksums, and wait until the disk has the files.

        Raises:
            InvalidArgument: Bytes are missing.
            DataLoss: The bytes do not match their SHA-256.
            ResourceExhausted: The disk is full.
        """
        declared = self.request.size_bytes
        if self._received_bytes != declared:
            raise InvalidArgument(f"the pieces hold {self._received_bytes} bytes, declared: {declared}")
        with full_disk_reported():
            for part in self._parts:
                part.finish()

    def discard(self) -> None:
        """Close and remove the files that were not moved elsewhere. May be called twice."""
        for part in self._parts:
            part.close()
        for part in self._parts:
            remove(part.path)


class _Part:
    """One encoding's file."""

    def __init__(self, path: Path, encoding: Encoding) -> None:
        self.path, self.encoding = path, encoding
        self._missing_bytes = encoding.size_bytes
        self._digest = hashlib.sha256()
        self._file: BinaryIO | None = None

    def take(self, data: memoryview) -> int:
        """Write what belongs to this file; return how many bytes that was."""
        own = data[: self._missing_bytes]
        self._missing_bytes -= len(own)
        if own:
            self._file = self._file or self.path.open("wb")
            self._file.write(own)
            self._digest.update(own)
        return len(own)

    def finish(self) -> None:
        """Check the checksum, flush to disk and close."""
        if self._digest.digest() != self.encoding.sha256:
            raise DataLoss(f"the {self.encoding.precision.value} encoding does not match its SHA-256")
        if self._file is not None:
            sync_file(self._file)
        self.close()

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk may refuse the rest of the buffer
                self._file.close()
