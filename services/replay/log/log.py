"""The log of a running server: writes the journal's records, compacts old segments, takes snapshots."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from tidemill.atomic_files import is_disk_full
from tidemill.config.services import StorageSettings
from tidemill.errors import FatalError, Reason, ResourceExhausted, Unavailable
from tidemill.logger import LateLogger
from tidemill.replay.batch import StoredSteps
from tidemill.services.replay.log.blob_reader import BlobFiles, BlobReader
from tidemill.services.replay.log.commits import Commits
from tidemill.services.replay.log.compactor import Compactor
from tidemill.services.replay.log.journal import Journal, describe_state
from tidemill.services.replay.log.open import OpenedLog
from tidemill.services.replay.log.segments import SegmentFile
from tidemill.services.replay.log.snapshot import Snapshotter
from tidemill.services.replay.log.writer import Command, FsyncLatency, LogWriter, Progress, Write
from tidemill.services.replay.tables.table import Table

_COMPACT_EVERY_S = 0.5
_NO_LIMIT = 2**62

_log = LateLogger()


class ReplayLog:
    """The parts of the log that wait for the disk. Must be created within the event loop."""

    def __init__(
        self,
        recovered: OpenedLog,
        settings: StorageSettings,
        changed: Callable[[], None],
        open_file: Callable[..., SegmentFile] = SegmentFile,
    ) -> None:
        """Continue where the log ended.

        Args:
            recovered: The state, and where its log ends.
            settings: How to write it.
            changed: Called after items were dropped.
            open_file: Opens a segment to write to.
        """
        self.recovered, self._replay = recovered, recovered.replay
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.commits = Commits(
            wait_for_sync=settings.ack == "fsync",
            max_pending_bytes=min(settings.max_queue_mib * 2**20, recovered.budget.share_limit or _NO_LIMIT),
            env_steps={table: self._replay.stored_steps(table) for table in self._replay.tables},
            reached=recovered.position.sequence,
        )
        self._loop = asyncio.get_running_loop()
        self._writer = LogWriter(
            recovered.folder,
            recovered.chain,
            0.0 if settings.ack == "fsync" else settings.fsync_interval_ms / 1000,
            self._report,
            open_file,
        )
        segment_bytes = settings.segment_mib * 2**20
        self.journal = Journal(self._submit, segment_bytes, recovered.position, partial(describe_state, self._replay))
        self.journal.segment_sizes.update(recovered.segment_sizes)
        self._replay.attach(self.journal)
        self.blobs = BlobReader(BlobFiles(recovered.folder))
        self._compactor = Compactor(self._replay, self.journal, self.commits, self.blobs, segment_bytes, changed)
        self.snapshots = Snapshotter(self._replay, self.journal, recovered.snapshots, self.commits.kept)
        self.journal.begin()
        self._replay.log_removed()  # items lost to corruption, so that they do not come back
        self._tasks = [
            asyncio.create_task(self._compact_for_ever()),
            asyncio.create_task(self.snapshots.take_every(settings.snapshot_every_s)),
        ]

    async def checkpoint(self) -> int:
        """Take a snapshot; return its number.

        Raises:
            ResourceExhausted: the disk is full.
        """
        try:
            return await self.snapshots.take()
        except OSError as error:
            if is_disk_full(error):
                raise ResourceExhausted(
                    f"no snapshot was written: {error.strerror}", reason=Reason.DISK_FULL
                ) from error
            raise

    def stored_steps(self, table: Table) -> StoredSteps:
        """Return the agent decisions of a table that are stored durably: a restart does not reduce this count."""
        return self.commits.env_steps.get(table, StoredSteps(self._replay.store_id, 0, table.count_id))

    @property
    def corrupt_records(self) -> int:
        """Records and chunks found corrupt or missing on disk, at the start and since."""
        corruption = self.recovered.corruption
        return corruption.records + corruption.missing_records + self._replay.corrupt_chunks

    @property
    def fsync(self) -> FsyncLatency:
        """How long the disk took to confirm."""
        return self._writer.fsync

    @property
    def is_full(self) -> bool:
        """Whether the disk has no room, so that nothing is acknowledged."""
        return self.commits.progress.full

    async def close(self) -> None:
        """Write and sync what was submitted, and take a last snapshot."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._replay.log_removed()
        await asyncio.to_thread(self._writer.close)
        self.commits.end(OSError("the log is closed"))
        if not self.commits.progress.full and not self.failed.done():
            with contextlib.suppress(OSError):
                await self.snapshots.take(is_last=True)
        self.blobs.close()
        self.recovered.folder.close()

    def _submit(self, command: Command) -> None:
        if isinstance(command, Write):
            self.commits.submitted(command.record.sequence, command.record.size)
        self._writer.submit(command)

    def _report(self, progress: Progress) -> None:
        """Notify the event loop; called by the writer's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._progressed, progress)

    def _progressed(self, progress: Progress) -> None:
        if progress.error is not None:
            self._fail(progress.error)
            return
        self.commits.progressed(progress)
        self.recovered.budget.written(progress.written)

    def _fail(self, error: BaseException) -> None:
        self.commits.end(OSError(str(error)))
        if not self.failed.done():
            self.failed.set_exception(FatalError(f"the replay log cannot be written: {error}"))

    async def _compact_for_ever(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(_COMPACT_EVERY_S)
            try:
                await self._compactor.compact()
                failing = False
            except Unavailable as error:
                if not failing:
                    _log.warning("old segments cannot be compacted and stay for now, retrying", reason=str(error))
                failing = True
            except Exception as error:
                self._fail(error)
                raise
