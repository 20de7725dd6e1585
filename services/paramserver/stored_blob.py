"""An encoding that is being read."""

from __future__ import annotations

from typing import BinaryIO

from services.paramserver.version_files import verify
from tidemill.params.version import Encoding


class StoredBlob:
    """An open encoding. Reading goes on when retention removes the version meanwhile."""

    def __init__(self, encoding: Encoding, file: BinaryIO, *, in_memory: bool) -> None:
        self.encoding = encoding
        self.in_memory = in_memory
        """Whether it was verified and is read without waiting for the disk."""
        self._file = file

    def verify(self) -> None:
        """Check the bytes before the first is read.

        Raises:
            DataLoss: They are torn or flipped.
        """
        verify(self._file, self.encoding)

    def read(self, size_bytes: int) -> bytes:
        """Return the next bytes, at most `size_bytes`; empty at the end."""
        return self._file.read(size_bytes)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
