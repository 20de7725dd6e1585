"""The writer's thread: order, groups, a disk that is full for a while, and one that fails for good."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tidemill.atomic_files import is_disk_full
from tidemill.services.replay.log.frame import Chain, Kind, Record, scan
from tidemill.services.replay.log.segments import LogFolder, SegmentFile
from tidemill.services.replay.log.writer import Delete, LogWriter, Progress, Write

WAIT_S = 120.0
MARK = b"12345678"


class Disk:
    """Files that refuse what they are told to."""

    def __init__(self) -> None:
        self.room_bytes: int | None = None
        self.write_error: OSError | None = None
        self.sync_error: OSError | None = None
        self.syncs = 0
        self.answers = threading.Event()
        """Whether a sync ends; a slow disk's takes until it is set."""
        self.answers.set()

    def open(self, path: Path) -> SegmentFile:
        """Open a file on this disk."""
        disk = self

        class File(SegmentFile):
            def write(self, offset: int, data: bytes) -> None:
                if disk.write_error is not None:
                    raise disk.write_error
                if disk.room_bytes is not None and offset + len(data) > disk.room_bytes:
                    super().write(offset, data[: max(disk.room_bytes - offset, 0)])  # what fits, as a real one does
                    raise OSError(errno.ENOSPC, "No space left on device")
                super().write(offset, data)

            def sync(self) -> None:
                disk.syncs += 1
                assert disk.answers.wait(WAIT_S)
                if disk.sync_error is not None:
                    raise disk.sync_error

        return File(path)


class Log:
    """A writer and what it reports."""

    def __init__(self, folder: Path, fsync_interval_s: float = 0.01) -> None:
        self.folder, self.disk = LogFolder(folder), Disk()
        self.reports: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self.writer = LogWriter(self.folder, Chain(MARK), fsync_interval_s, self.reports.put, self.disk.open)
        self._sequence = self.offset = 0

    def submit(self, segment: int = 1, meta: bytes = b"meta") -> int:
        """Submit a record; return its sequence number."""
        self._sequence += 1
        record = Record(Kind.TABLE, self._sequence, meta, copy=meta)
        self.writer.submit(Write(segment, self.offset, record))
        self.offset += record.size
        return self._sequence

    def until(self, **wanted: object) -> Progress:
        """Wait for a report with these values, or beyond them."""
        while True:
            progress = self.reports.get(timeout=WAIT_S)
            if all(getattr(progress, name) >= value for name, value in wanted.items()):
                return progress

    def records(self, segment: int = 1) -> list[int]:
        """Return the sequence numbers in a segment, of which there is a copy each."""
        paths = self.folder.segment(segment), self.folder.copies(segment)
        records, copies = ([f.sequence for f in scan(memoryview(p.read_bytes()), MARK).frames] for p in paths)
        assert records == copies
        return records


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A writer in an empty folder."""
    opened = Log(tmp_path)
    yield opened
    opened.disk.room_bytes = None
    opened.writer.close()
    opened.folder.close()


def test_records_are_written_in_order_and_then_synced(log: Log) -> None:
    """Written is reported before synced, and both reach the newest record."""
    newest = [log.submit() for _ in range(100)][-1]
    assert log.until(written=newest).error is None
    log.until(synced=newest)
    assert log.records() == list(range(1, newest + 1))
    assert sum(log.writer.fsync.counts) == log.disk.syncs >= 1


def test_full_disk_is_told_and_writing_goes_on_by_itself(log: Log) -> None:
    """Nothing after the full moment counts as written until there is room; then all of it is there, once."""
    log.until(written=log.submit())
    log.disk.room_bytes = log.folder.segment(1).stat().st_size + 20
    for _ in range(5):
        log.submit()
    assert log.until(full=True).written == 1
    log.disk.room_bytes = None
    progress = log.until(written=6)
    assert not progress.full
    assert log.records() == [1, 2, 3, 4, 5, 6]


def test_what_was_written_before_the_disk_was_full_is_synced(log: Log) -> None:
    """It was acknowledged, and the disk may stay full for hours."""
    log.disk.answers.clear()
    log.until(written=log.submit())
    wait_until(lambda: log.disk.syncs == 1, "a sync is under way")
    log.until(written=log.submit())
    log.disk.room_bytes = log.folder.segment(1).stat().st_size
    log.submit()
    log.until(full=True)
    log.disk.answers.set()
    wait_until(lambda: log.reports.get(timeout=WAIT_S).synced == 2, "the second record is synced")


def test_slow_disk_holds_what_waits_for_it_and_nothing_else(log: Log) -> None:
    """While a sync takes its time records are written on; they count as synced after it, by few more syncs."""
    log.disk.answers.clear()
    first = log.submit()
    log.until(written=first)
    wait_until(lambda: log.disk.syncs == 1, "a sync is under way")
    newest = [log.submit() for _ in range(100)][-1]
    progress = log.until(written=newest)
    assert progress.synced == 0
    log.disk.answers.set()
    log.until(synced=newest)
    assert log.disk.syncs <= 3


def test_writer_closed_on_a_full_disk_leaves_no_gap(tmp_path: Path) -> None:
    """What did not fit is lost, and nothing is written behind it."""
    log = Log(tmp_path)
    log.until(written=log.submit())
    log.disk.room_bytes = log.folder.segment(1).stat().st_size
    log.submit()
    log.until(full=True)
    log.submit()
    log.writer.submit(Delete(1))  # of what the record that did not fit takes the place of
    log.writer.close()
    assert log.records() == [1]
    log.folder.close()


def test_sync_that_a_full_disk_refused_is_not_repeated(tmp_path: Path) -> None:
    """Its pages may be gone, although the system would say of the next sync that all is well."""
    log = Log(tmp_path, fsync_interval_s=3600.0)
    log.until(written=log.submit())
    log.disk.sync_error = OSError(errno.ENOSPC, "No space left on device")
    log.offset = 0
    log.submit(segment=2)
    while (progress := log.reports.get(timeout=WAIT_S)).error is None:
        log.disk.sync_error = None if progress.full else log.disk.sync_error
        assert progress.synced == 0
    assert progress.error is log.disk.sync_error
    log.writer.close()
    log.folder.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
@pytest.mark.parametrize("what", ["write_error", "sync_error"])
def test_other_failure_ends_the_writer_and_is_told(log: Log, what: str, code: int) -> None:
    """A disk that cannot be trusted any more, or became read-only, is reported once; nothing counts as written then."""
    error = OSError(code, os.strerror(code))
    setattr(log.disk, what, error)
    log.submit()
    while (progress := log.reports.get(timeout=WAIT_S)).error is None:
        pass
    assert progress.error is error
    assert progress.synced == 0


def test_segment_is_deleted_after_what_was_submitted_before_is_synced(log: Log) -> None:
    """What takes a segment's place must be safe before the segment goes."""
    log.until(written=log.submit(segment=1))
    log.offset = 0
    newest = log.submit(segment=2)
    log.writer.submit(Delete(1))
    log.until(synced=newest)
    while log.folder.segment(1).exists():
        log.reports.get(timeout=WAIT_S)
    assert log.records(2) == [newest]


@pytest.mark.parametrize(
    "code, full", [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EFBIG, True), (errno.EIO, False)]
)
def test_full_disk_is_told_from_other_errors(code: int, full: bool) -> None:
    """No space, a used-up quota and a file size limit pass by themselves; others do not."""
    assert is_disk_full(OSError(code, "why")) is full
