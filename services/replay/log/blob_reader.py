"""Reader of blobs in the segments of a log, with checks, in threads outside the event loop."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tidemill.arrays import Ints
from tidemill.errors import Reason, Unavailable
from tidemill.services.replay.log.frame import CRC_BYTES, blob_is_intact
from tidemill.services.replay.log.logged_blocks import Locations, LoggedBlocks
from tidemill.services.replay.log.segments import LogFolder

_MAX_OPEN = 128


class BlobFiles:
    """Open segments. Used by one thread at a time."""

    def __init__(self, folder: LogFolder) -> None:
        """Open nothing yet."""
        self._folder = folder
        self._files: OrderedDict[int, int] = OrderedDict()  # descriptors, the longest unused first

    def read(self, where: Locations) -> list[bytes | None]:
        """Return each blob, None for one that is corrupt or gone.

        Raises:
            OSError: The system could not read: it has no descriptor left, say. That proves nothing about the bytes.
        """
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
            try:
                return os.pread(self._descriptor(segment), size, offset)
            except OSError:
                self.forget(segment)  # of a network's file system it may be stale
                return os.pread(self._descriptor(segment), size, offset)
        except FileNotFoundError:
            self._folder.check_there()
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


class BlobReader:
    """Reads what memory no longer has, in one thread."""

    def __init__(self, files: BlobFiles) -> None:
        """Read from segments; `close` closes them."""
        self._files = files
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-reader")
        self.reads = 0
        self.read_bytes = 0

    async def blobs(self, blocks: LoggedBlocks, slots: Ints) -> tuple[list[bytes | None], Ints]:
        """Return the blob of each chunk [N], all held by the caller, and which chunks are corrupt.

        Raises:
            Unavailable: The system could not read them; another attempt may succeed.
        """
        found: list[bytes | None] = list(blocks.peek(slots))
        missing = np.array([i for i, blob in enumerate(found) if blob is None], dtype=np.int64)
        while len(missing):
            where = blocks.locations(slots[missing])
            loop = asyncio.get_running_loop()
            try:
                blobs = await loop.run_in_executor(self._thread, self._files.read, where)
            except OSError as error:
                raise Unavailable(
                    f"the replay log could not be read: {error.strerror}", reason=Reason.DEPENDENCY_UNAVAILABLE
                ) from error
            for i, blob in zip(missing.tolist(), blobs, strict=True):
                found[i] = blob
            self.reads += len(blobs)
            self.read_bytes += int(where.sizes.sum())
            failed = np.array([blob is None for blob in blobs], dtype=np.bool_)
            now = blocks.locations(slots[missing])
            moved = (now.segments != where.segments) | (now.offsets != where.offsets)  # while they were read
            if not (failed & moved).any():
                return found, slots[missing[failed]]
            missing = missing[failed]
        return found, missing

    def forget(self, segment: int) -> None:
        """Close a segment that is being deleted."""
        self._thread.submit(self._files.forget, segment)

    def close(self) -> None:
        """End the thread and close the files."""
        self._thread.shutdown()
        self._files.close()
