"""The newest version's bytes in memory, for all who are sent them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidemill.params.version import Encoding, Precision, Version


class NewestBlobs:
    """Encodings of the newest version, each read when it is first asked for; safe to use from several threads.

    A version that nobody asks for, or that its readers take from its files, is never copied.
    """

    def __init__(self, max_bytes: int) -> None:
        """Hold versions of at most so many bytes, all encodings together; the disk's own cache serves larger ones."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # held while one is read, so that many readers do not read it each
        self._blobs: dict[tuple[int, Precision], bytes] = {}
        self._newest = 0

    def replace(self, newest: Version | None) -> None:
        """Forget the former version; hold this one from now on."""
        fits = newest is not None and sum(item.size_bytes for item in newest.encodings) <= self._max_bytes
        with self._lock:
            self._newest = newest.version if newest is not None and fits else 0
            self._blobs = {}

    def get(self, number: int, precision: Precision) -> bytes | None:
        """Return an encoding of a version if it is held; never waits."""
        return self._blobs.get((number, precision))

    def load(self, number: int, encoding: Encoding, read: Callable[[], bytes]) -> bool:
        """Hold an encoding of a version from now on; return False if it is none of the newest, or that is too large.

        Args:
            number: Number of the version.
            encoding: Which of its encodings.
            read: Returns its bytes, verified; what it raises passes through.
        """
        key = (number, encoding.precision)
        with self._lock:
            if number != self._newest:
                return False
            if key not in self._blobs:
                self._blobs = {**self._blobs, key: read()}
            return True
