"""Blobs of chunks, from memory or from the log, read beside the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from tidemill.services.replay.blob_files import BlobFiles
from tidemill.services.replay.log_blocks import LogBlocks

Ints = NDArray[np.int64]


class ColdReader:
    """Reads what memory no longer has, in one thread."""

    def __init__(self, files: BlobFiles) -> None:
        """Read from segments; `close` closes them."""
        self._files = files
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-reader")
        self.reads = 0
        self.read_bytes = 0

    async def blobs(self, blocks: LogBlocks, slots: Ints) -> tuple[list[bytes | None], Ints]:
        """Return the blob of each chunk [N], all held by the caller, and which chunks are damaged."""
        found: list[bytes | None] = list(blocks.peek(slots))
        missing = np.array([i for i, blob in enumerate(found) if blob is None], dtype=np.int64)
        while len(missing):
            where = blocks.locations(slots[missing])
            loop = asyncio.get_running_loop()
            blobs = await loop.run_in_executor(self._thread, self._files.read, where)
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
