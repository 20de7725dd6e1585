"""Reads blobs back from the segments of a log, and checks them."""

from __future__ import annotations

import os
from collections import OrderedDict

from tidemill.services.replay.log_blocks import Locations
from tidemill.services.replay.log_frame import CRC_BYTES, blob_is_intact
from tidemill.services.replay.segment_file import LogFolder

_MAX_OPEN = 128


class BlobFiles:
    """Open segments. Used by one thread at a time."""

    def __init__(self, folder: LogFolder) -> None:
        """Open nothing yet."""
        self._folder = folder
        self._files: OrderedDict[int, int] = OrderedDict()  # descriptors, the longest unused first

    def read(self, where: Locations) -> list[bytes | None]:
        """Return each blob, None for one that is damaged or gone."""
        found: list[bytes | None] = [None] * len(where.ids)
        columns = (where.ids, where.segments, where.offsets, where.sizes)
        for i, (identity, segment, offset, size) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            stored = self._read(segment, offset, size + CRC_BYTES)
            if len(stored) == size + CRC_BYTES and blob_is_intact(identity, memoryview(stored)):
                found[i] = stored[CRC_BYTES:]
        return found

    def forget(self, segment: int) -> None:
        """Close a segment, so that its room on the disk is free once it is deleted."""
        descriptor = self._files.pop(segment, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close every file."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _read(self, segment: int, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._descriptor(segment), size, offset)
        except OSError:
            return b""

    def _descriptor(self, segment: int) -> int:
        if segment in self._files:
            self._files.move_to_end(segment)
            return self._files[segment]
        if len(self._files) == _MAX_OPEN:
            _, oldest = self._files.popitem(last=False)
            os.close(oldest)
        descriptor = os.open(self._folder.segment(segment), os.O_RDONLY | os.O_CLOEXEC)
        self._files[segment] = descriptor
        return descriptor
