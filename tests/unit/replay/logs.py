"""A log without threads: every record is in its file before the change returns."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tidemill.replay.batch import SampledBatch
from tidemill.replay.wire import config_to_json
from tidemill.services.replay.log.blob_reader import BlobFiles, BlobReader
from tidemill.services.replay.log.commits import Commits
from tidemill.services.replay.log.compactor import Compactor
from tidemill.services.replay.log.journal import Journal, describe_state
from tidemill.services.replay.log.logged_blocks import LoggedBlocks
from tidemill.services.replay.log.open import OpenedLog, open_replay_log
from tidemill.services.replay.log.segments import NewestSegment, SegmentFile
from tidemill.services.replay.log.snapshot import Snapshot, TableSnapshot, item_states
from tidemill.services.replay.log.writer import Command, Delete
from tidemill.services.replay.state.memory import MemoryBudget
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.table import Table

NOW_S = 1_700_000_000.0
"""The time of day where a test sets none: what is logged depends on it."""


class AtOnce(Commits):
    """A writer that never keeps anybody waiting."""

    def __init__(self) -> None:
        super().__init__(wait_for_sync=False, max_pending_bytes=1, reached=2**63)


class BlobBudget(MemoryBudget):
    """Memory for blobs alone, of which a few small ones fill it."""

    @property
    def room_bytes(self) -> int:
        """Bytes that may still come into memory."""
        return super().room_bytes + self.beside_bytes

    def excess_bytes(self, coming: int) -> int:
        """Return 0."""
        return 0


@dataclass
class Log:
    """A state and its log in a folder."""

    recovered: OpenedLog
    journal: Journal
    segment_bytes: int

    @property
    def replay(self) -> ReplayState:
        """The state."""
        return self.recovered.replay

    @property
    def files(self) -> list[Path]:
        """The segments, the oldest first."""
        folder = self.recovered.folder
        return [folder.segment(number) for number in folder.segments()]

    @property
    def copies(self) -> list[Path]:
        """The files of copies, the oldest first."""
        folder = self.recovered.folder
        return [folder.copies(number) for number in folder.segments()]

    def compact(self, writing: AtOnce | None = None) -> None:
        """Delete and move what the cleaner would."""
        cold = BlobReader(BlobFiles(self.recovered.folder))
        cleaner = Compactor(self.replay, self.journal, writing or AtOnce(), cold, self.segment_bytes, lambda: None)
        asyncio.run(cleaner.compact())
        cold.close()

    def snapshot(self, *, is_last: bool = False) -> None:
        """Take a snapshot; with `is_last` as a server does that stops."""
        self.replay.log_removed()
        tables = [
            TableSnapshot(
                table.number,
                table.stats.to_array(),
                [item_states(table.items, table.items.live())],
                config_to_json(table.config),
                table.times.marks,
            )
            for table in self.replay.tables
        ]
        self.recovered.snapshots.write(Snapshot(self.replay.sequence, tables, self.journal.segment, is_last))

    def crash(self) -> None:
        """Forget the state; the files stay."""
        self.recovered.folder.close()


def open_log(
    path: Path, segment_bytes: int = 2**20, max_memory_bytes: int = 0, clock: Callable[[], float] = lambda: NOW_S
) -> Log:
    """Open a log as a server does."""
    recovered = open_replay_log(path, BlobBudget(max_memory_bytes), partial(empty_replay, clock=clock))
    journal = Journal(
        lambda command: carry_out(recovered, command),
        segment_bytes,
        recovered.position,
        partial(describe_state, recovered.replay),
    )
    journal.segment_sizes.update(recovered.segment_sizes)
    recovered.replay.attach(journal)
    journal.begin()
    recovered.replay.log_removed()
    return Log(recovered, journal, segment_bytes)


def empty_replay(budget: MemoryBudget, clock: Callable[[], float] = lambda: NOW_S) -> ReplayState:
    """Return a state without tables."""
    return ReplayState(
        max_tables=16,
        max_streams=1000,
        first_epoch=1,
        rng=np.random.default_rng(3),
        clock=clock,
        budget=budget,
        make_blocks=partial(LoggedBlocks, budget=budget),
    )


def carry_out(recovered: OpenedLog, command: Command) -> None:
    """Do at once what the writer would do."""
    folder, chain = recovered.folder, recovered.chain
    if isinstance(command, Delete):
        folder.remove(command.segment)
        return
    copies = SegmentFile(folder.copies(command.segment))
    end = folder.copies(command.segment).stat().st_size
    file = SegmentFile(folder.segment(command.segment))
    if not command.offset:
        folder.begin(NewestSegment(chain.mark, command.segment, command.record.sequence))
    file.write(command.offset, b"".join(chain.frame(command.record)))
    copies.write(end, b"".join(chain.copy(command.record)))
    file.close()
    copies.close()
    recovered.budget.written(command.record.sequence)


def sample_all(log: Log, table: Table) -> SampledBatch:
    """Draw every item once, reading from the log what is not in memory."""
    drawn = table.draw(table.size, without_replacement=True)
    blocks = table.store.blocks
    assert isinstance(blocks, LoggedBlocks)
    cold = BlobReader(BlobFiles(log.recovered.folder))
    blobs, corrupt = asyncio.run(cold.blobs(blocks, drawn.chunks))
    cold.close()
    drawn.release(table.store)
    assert not len(corrupt)
    whole: Sequence[bytes] = [blob for blob in blobs if blob is not None]
    return drawn.with_blocks(blocks.cut(drawn.chunks, list(whole), drawn.batch.step_counts))


@contextmanager
def unreadable(code: int) -> Iterator[None]:
    """Let no segment be opened to be read: the system answers with an error code."""
    open_any = os.open

    def refuse(path: str | Path, flags: int, *arguments: int) -> int:
        if Path(path).suffix == ".log" and flags & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(code, os.strerror(code), str(path))
        return open_any(path, flags, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield
