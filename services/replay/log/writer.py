"""The thread that writes the log: takes records in order, writes them in groups and has them synced periodically."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tidemill.atomic_files import is_disk_full
from tidemill.logger import LateLogger
from tidemill.services.replay.log.frame import Chain, Record
from tidemill.services.replay.log.segments import LogFolder, NewestSegment, SegmentFile, SegmentPair

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


_MAX_GROUP_BYTES = 8 * 2**20
_RETRY_S = 0.5

_log = LateLogger()


@dataclass(frozen=True, slots=True)
class Write:
    """A record to write at a place."""

    segment: int
    offset: int
    record: Record


@dataclass(frozen=True, slots=True)
class Delete:
    """A segment to delete, after everything before is written."""

    segment: int


Command = Write | Delete


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the writer.

    Attributes:
        written: Every record up to this sequence number is written.
        synced: Every record up to this one is on disk, whatever happens to the machine.
        full: Whether the disk is full; the writer retries until it has room.
        error: What ended the writer.
    """

    written: int = 0
    synced: int = 0
    full: bool = False
    error: BaseException | None = None


class LogWriter:
    """Writes records in the background. Commands are taken in order."""

    def __init__(
        self,
        folder: LogFolder,
        chain: Chain,
        fsync_interval_s: float,
        report: Callable[[Progress], None],
        open_file: Callable[..., SegmentFile] = SegmentFile,
    ) -> None:
        """Start the thread.

        Args:
            folder: Where the segments lie.
            chain: Frames records behind the newest there.
            fsync_interval_s: Longest time between a write and its sync, or twice that and the time of a sync that is
                under way; 0 syncs after every group.
            report: Called by the thread after each group, and when it ends with an error.
            open_file: Opens the file at a path.
        """
        self._folder, self._interval_s, self._report, self._open = folder, fsync_interval_s, report, open_file
        self._chain = chain
        self._syncer = Syncer(self._note_synced, self._tell)
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._files: SegmentPair | None = None
        self._written = self._synced = 0
        self._sync_due: float | None = None
        self._full = self._gave_up = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def fsync(self) -> FsyncLatency:
        """How long the disk took to confirm."""
        return self._syncer.latency

    def submit(self, command: Command) -> None:
        """Queue a command."""
        self._commands.put(command)

    def close(self) -> None:
        """Write and sync what was submitted, unless the disk is full, and end the thread."""
        self._closing.set()
        self._commands.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            ends = False
            while not ends:
                commands = self._take()
                ends = None in commands
                self._carry_out([command for command in commands if command is not None])
                if self._is_sync_due or (ends and self._sync_due is not None):
                    self._sync(wait=ends or not self._interval_s)
                self._tell()
        except BaseException as error:  # reported to the owner, which ends the process
            self._tell(error)
        finally:
            self._syncer.close()
            if self._files is not None:
                self._files.close()

    def _take(self) -> list[Command | None]:
        """Wait for commands, or until a sync is due."""
        due = self._sync_due
        try:
            first = self._commands.get(timeout=None if due is None else max(due - time.monotonic(), 0.0))
        except queue.Empty:
            return []
        taken, size = [first], _size(first)
        while size < _MAX_GROUP_BYTES and taken[-1] is not None:
            try:
                taken.append(self._commands.get_nowait())
            except queue.Empty:
                break
            size += _size(taken[-1])
        return taken

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for (kind, segment), group in itertools.groupby(commands, lambda command: (type(command), command.segment)):
            if self._gave_up:  # what takes the place of a segment may be among what is not written
                return
            if kind is Delete:
                if self._synced < self._written:  # what takes its place must not be lost with the power
                    self._sync(wait=True)
                self._folder.remove(segment)
            else:
                self._write(segment, [command for command in group if isinstance(command, Write)])

    def _write(self, segment: int, group: list[Write]) -> None:
        if not self._written:
            self._written = self._synced = group[0].record.sequence - 1  # what was there is synced at the start
        self._finish_before(segment)
        pieces, copies = [], []
        synced = self._synced
        for command in group:
            pieces += self._chain.frame(command.record, synced)
            copies += self._chain.copy(command.record, synced)
        data, copied = b"".join(pieces), b"".join(copies)
        while True:
            try:
                self._files_of(segment, group[0].record.sequence).write(group[0].offset, data, copied)
                break
            except OSError as error:
                if not is_disk_full(error):
                    raise
                self._wait_for_room(error)
                if self._closing.is_set():  # records after a gap are useless
                    _log.error("disk full at shutdown, unacknowledged data is lost", reason=error.strerror)
                    self._gave_up = True
                    return
        if self._full:
            _log.info("disk has room again")
            self._full = False
        self._written = group[-1].record.sequence
        if self._sync_due is None:
            self._sync_due = time.monotonic() + self._interval_s

    def _wait_for_room(self, error: OSError) -> None:
        if not self._full:
            _log.warning("disk full, nothing is acknowledged until space is freed", reason=error.strerror)
            self._full = True
        if self._is_sync_due:
            self._sync(wait=False)
        self._tell()
        self._closing.wait(_RETRY_S)

    def _finish_before(self, segment: int) -> None:
        """Sync and close the files of another segment. A sync that failed, on a full disk too, is not repeated."""
        if self._files is not None and segment != self._files.number:
            self._sync(wait=True)
            self._files.sync_copies()
            self._files.close()
            self._files = None

    def _files_of(self, segment: int, sequence: int) -> SegmentPair:
        """Return the files of a segment; a record of that number begins it if there is none that grows."""
        if self._files is None:
            newest = NewestSegment(self._chain.mark, segment, sequence)
            self._files = SegmentPair(self._folder, newest, self._open)
        return self._files

    @property
    def _is_sync_due(self) -> bool:
        return self._sync_due is not None and time.monotonic() >= self._sync_due

    def _sync(self, *, wait: bool) -> None:
        """Sync what is written; without `wait` in the background, later if a sync is under way."""
        assert self._files is not None, "a sync is due only after a write"
        if wait:
            self._syncer.sync(self._files, self._written)
            self._sync_due = None
        elif self._syncer.is_busy:
            self._sync_due = time.monotonic() + self._interval_s
        else:
            self._syncer.start(self._files, self._written)
            self._sync_due = None

    def _note_synced(self, sequence: int) -> None:
        self._synced = sequence
        self._tell()

    def _tell(self, error: BaseException | None = None) -> None:
        self._report(Progress(self._written, self._synced, self._full, error))


def _size(command: Command | None) -> int:
    return command.record.size if isinstance(command, Write) else 0
