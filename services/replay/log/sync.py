"""Syncs the log to the disk in a separate thread, and measures how long the disk takes."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tidemill.services.replay.log.segments import SegmentPair

BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets but the last, which has none, in seconds."""


class FsyncLatency:
    """Counts durations by bucket. Written by one thread, read by others."""

    def __init__(self) -> None:
        """Begin with none."""
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class Syncer:
    """Syncs one segment at a time. Its methods are called by one thread."""

    def __init__(self, synced: Callable[[int], None], failed: Callable[[BaseException], None]) -> None:
        """Start nothing yet.

        Args:
            synced: Called, by any thread, with the record up to which the disk has everything.
            failed: Called with the error of a sync that was started; it cannot be repeated.
        """
        self._synced, self._failed = synced, failed
        self.latency = FsyncLatency()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-syncer")
        self._underway: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a sync is under way."""
        return self._underway is not None and not self._underway.done()

    def start(self, files: SegmentPair, sequence: int) -> None:
        """Sync a segment that is written up to a record; none may be under way."""
        self.wait()
        self._underway = self._thread.submit(self._sync_or_tell, files, sequence)

    def sync(self, files: SegmentPair, sequence: int) -> None:
        """Sync a segment that is written up to a record, after what is under way, and wait for it.

        Raises:
            OSError: the disk refused.
        """
        self.wait()
        self._sync(files, sequence)

    def wait(self) -> None:
        """Wait for what is under way. OSError: the disk refused."""
        if self._underway is not None:
            self._underway.result()

    def close(self) -> None:
        """End the thread after what is under way."""
        self._thread.shutdown()

    def _sync_or_tell(self, files: SegmentPair, sequence: int) -> None:
        try:
            self._sync(files, sequence)
        except BaseException as error:
            self._failed(error)
            raise

    def _sync(self, files: SegmentPair, sequence: int) -> None:
        started = time.monotonic()
        files.sync()
        self.latency.observe(time.monotonic() - started)
        self._synced(sequence)
