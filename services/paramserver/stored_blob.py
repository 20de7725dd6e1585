"""An encoding that is being read."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from tidemill.errors import Unavailable
from tidemill.params.version import Encoding
from tidemill.services.paramserver.version_files import verify


class StoredBlob:
    """An open encoding.

    Reading goes on, from the disk, when a newer version takes its place in memory or retention removes it.
    """

    def __init__(self, number: int, encoding: Encoding, file: BinaryIO, cached: Callable[[], bytes | None]) -> None:
        """Take what it is read from.

        Args:
            number: Number of the version it is of.
            encoding: What it is.
            file: Its file; closed with this.
            cached: Returns its verified bytes as long as the store holds them in memory for all readers.
        """
        self.number, self.encoding = number, encoding
        self._file, self._cached, self._offset = file, cached, 0

    @property
    def in_memory(self) -> bool:
        """Whether it was verified and is read without waiting for the disk, for now."""
        return self._cached() is not None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._file.closed

    def verify(self) -> None:
        """Check the bytes before the first is read.

        Raises:
            DataLoss: They are torn or flipped.
        """
        verify(self._file, self.encoding)

    def read_memory(self, size_bytes: int) -> bytes | None:
        """Return the next bytes, at most `size_bytes` and none at the end; None if they must come from the disk."""
        cached = self._cached()
        return None if cached is None else self._moved(cached[self._offset : self._offset + size_bytes])

    def read_disk(self, size_bytes: int) -> bytes:
        """Return the next bytes as `read_memory`, but from the disk.

        Raises:
            Unavailable: It was closed meanwhile.
        """
        try:
            self._file.seek(self._offset)
            return self._moved(self._file.read(size_bytes))
        except ValueError as error:  # of a closed file
            raise Unavailable(
                f"version {self.number} was removed while it was read, too slowly for what is kept; fetch again"
            ) from error

    def close(self) -> None:
        """Close the file; from any thread, also while it is read. May be called twice."""
        self._file.close()

    def _moved(self, data: bytes) -> bytes:
        self._offset += len(data)
        return data
