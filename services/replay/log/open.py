"""Opens a log's folder and brings back the state it describes, the newest chunks in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.arrays import Ints
from tidemill.atomic_files import is_there
from tidemill.errors import FatalError
from tidemill.services.replay.chunks.store import ChunkStore
from tidemill.services.replay.log.blob_reader import BlobFiles
from tidemill.services.replay.log.corruption import Corruption, carry_out
from tidemill.services.replay.log.frame import Chain
from tidemill.services.replay.log.journal import LogPosition
from tidemill.services.replay.log.logged_blocks import logged
from tidemill.services.replay.log.reader import LogContents, read_log
from tidemill.services.replay.log.rebuild import rebuild
from tidemill.services.replay.log.segments import LogFolder, check_formats, find_mark, new_mark, read_newest
from tidemill.services.replay.log.snapshot import Snapshot, SnapshotFiles, snapshot_paths
from tidemill.services.replay.state.memory import MemoryBudget
from tidemill.services.replay.state.replay_state import ReplayState

_PRELOAD_BATCH = 1024


def preload(replay: ReplayState, files: BlobFiles, budget: MemoryBudget) -> int:
    """Fill memory with blobs; return how many items were dropped because a chunk of theirs is corrupt.

    Chunks beyond the budget are checked when they are first read.
    """
    corrupt = [(store, _read_newest(store, files, budget)) for store in replay.stores]
    return sum(replay.drop_chunks(store, chunks) for store, chunks in corrupt)


def _read_newest(store: ChunkStore, files: BlobFiles, budget: MemoryBudget) -> Ints:
    """Read what fits; return the corrupt chunks."""
    blocks = logged(store)
    slots = store.held()
    newest_first = slots[np.argsort(-blocks.ids[slots], kind="stable")]
    sizes = np.cumsum(blocks.locations(newest_first).sizes)
    fitting = newest_first[: int(np.searchsorted(sizes, budget.room_bytes, side="right"))]
    corrupt = []
    for start in range(0, len(fitting), _PRELOAD_BATCH):
        batch = fitting[start : start + _PRELOAD_BATCH]
        for slot, blob in zip(batch.tolist(), files.read(blocks.locations(batch)), strict=True):
            if blob is None:
                corrupt.append(slot)
            else:
                blocks.keep(slot, blob)
    blocks.mark_evictable(fitting)
    return np.array(corrupt, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class FolderContents:
    """Contents of a log's folder.

    Attributes:
        mark: Of the log; a new one if there is none.
        contents: The contents of its segments.
        files: Its snapshots.
        snapshot: The newest that is intact.
    """

    mark: bytes
    contents: LogContents
    files: SnapshotFiles
    snapshot: Snapshot | None


def read_folder(folder: LogFolder) -> FolderContents:
    """Read the folder of a log without changing it.

    Raises:
        FatalError: it has files of another format.
    """
    numbers = folder.segments()
    paths = [path for n in numbers for path in (folder.segment(n), folder.copies(n)) if is_there(path)]
    newest, corrupt_notes = read_newest(folder.path)
    files_of_log = [*paths, *snapshot_paths(folder.path)]
    check_formats(files_of_log, newest)
    mark = find_mark(folder.path, files_of_log) or new_mark()
    files = SnapshotFiles(folder, mark)
    snapshot = files.load()
    contents = read_log(folder, mark, newest, snapshot)
    for _ in range(corrupt_notes):
        contents.corruption.add("the file that names the newest segment is corrupt")
    for name in files.corrupt:
        contents.corruption.add(f"{name} is corrupt")
    if not contents.chain.sequence and newest is None:  # nothing of this log: its mark was only guessed
        mark = new_mark()
        files = SnapshotFiles(folder, mark)
    return FolderContents(mark, contents, files, snapshot)


@dataclass(frozen=True, slots=True, eq=False)
class OpenedLog:
    """A state and where its log ends.

    Attributes:
        folder: The log's folder, locked.
        replay: The state.
        budget: Memory for its chunks.
        snapshots: The snapshots in the folder.
        position: Where the log continues.
        chain: What the next record is linked to.
        segment_sizes: Bytes of each segment, the oldest first.
        corruption: What was corrupt or missing, including corrupt chunks.
        items: Items that were restored.
        dropped: Items that were not, because bytes they need are corrupt or missing, or they may have been removed.
        took_s: How long it took, in seconds.
    """

    folder: LogFolder
    replay: ReplayState
    budget: MemoryBudget
    snapshots: SnapshotFiles
    position: LogPosition
    chain: Chain
    segment_sizes: dict[int, int]
    corruption: Corruption
    items: int
    dropped: int
    took_s: float


def open_replay_log(path: Path, budget: MemoryBudget, make_replay: Callable[[MemoryBudget], ReplayState]) -> OpenedLog:
    """Read a log, or begin one where there is none.

    Args:
        path: Its folder.
        budget: Memory for all that is stored.
        make_replay: Returns an empty state.

    Raises:
        FatalError: the folder is used by another server, cannot be used, or has files of another format.
    """
    started = time.monotonic()
    folder = LogFolder(path)
    try:
        found = read_folder(folder)
        contents = found.contents
        found.files.remove_drafts()
        carry_out(contents.repairs)
        folder.sync_newest()
        replay = make_replay(budget)
        files = BlobFiles(folder)
        next_chunk, lost = rebuild(replay, contents, found.snapshot, files)
        replay.memory.count()
        dropped = sum(lost.values()) + preload(replay, files, budget)
        files.close()
    except OSError as error:
        folder.close()
        raise FatalError(f"cannot restore the replay log in {path}: {error}") from error
    except BaseException:
        folder.close()
        raise
    corruption, chain = contents.corruption, contents.chain
    corruption.records += replay.corrupt_chunks
    replay.corrupt_chunks = 0  # counted above
    removed = {number: report.removed_so_far + contents.end_is_lost for number, report in chain.reports.items()}
    position = LogPosition(contents.next_segment, 0, chain.sequence, next_chunk, removed)
    return OpenedLog(
        folder=folder,
        replay=replay,
        budget=budget,
        snapshots=found.files,
        position=position,
        chain=Chain(found.mark, chain.link),
        segment_sizes=contents.segment_sizes,
        corruption=corruption,
        items=sum(table.size for table in replay.tables),
        dropped=dropped,
        took_s=time.monotonic() - started,
    )
