"""A version on its way in: its bytes go straight to disk, never into memory as a whole."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import BinaryIO

from tidemill.errors import DataLoss, InvalidArgument
from tidemill.params.version import Encoding, Precision
from tidemill.services.paramserver.draft import Draft
from tidemill.services.paramserver.durable import full_disk_reported, remove, sync_file


class Incoming:
    """Writes the bytes of a draft's encodings, in order, to files of their own, made with their first byte.

    Not finished until `finish`; `discard` removes whatever was not moved elsewhere.
    """

    def __init__(self, folder: Path, draft: Draft) -> None:
        self.draft = draft
        self._received_bytes = 0
        self._parts = [_Part(folder / f"{item.precision.value}.safetensors", item) for item in draft.encodings]

    @property
    def paths(self) -> dict[Precision, Path]:
        """Where each encoding's bytes are."""
        return {part.encoding.precision: part.path for part in self._parts}

    def write(self, piece: bytes) -> None:
        """Append the next bytes.

        Raises:
            InvalidArgument: They are more than the draft declared; none of them was written.
            ResourceExhausted: The disk is full.
        """
        declared = self.draft.size_bytes
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
        declared = self.draft.size_bytes
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
