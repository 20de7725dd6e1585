"""Opens a log's folder and brings back the state it tells of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.replay.blob_files import BlobFiles
from services.replay.journal import LogPosition
from services.replay.log_reader import Damage, read_log
from services.replay.memory_budget import MemoryBudget
from services.replay.replay import Replay
from services.replay.restore import restore
from services.replay.segment_file import LogFolder
from services.replay.snapshot import SnapshotFiles
from services.replay.warm_up import warm_up
from tidemill.errors import FatalError


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """A state and where its log ends.

    Attributes:
        folder: The log's folder, locked.
        replay: The state.
        budget: Memory for its chunks.
        snapshots: The snapshots in the folder.
        position: Where the log goes on.
        segment_sizes: Bytes of each segment, the oldest first.
        damage: What was broken, damaged chunks included.
        items: Items that are there again.
        dropped: Items that are not, because bytes they need are damaged.
        took_s: How long it took, in seconds.
    """

    folder: LogFolder
    replay: Replay
    budget: MemoryBudget
    snapshots: SnapshotFiles
    position: LogPosition
    segment_sizes: dict[int, int]
    damage: Damage
    items: int
    dropped: int
    took_s: float


def recover(path: Path, budget: MemoryBudget, make_replay: Callable[[MemoryBudget], Replay]) -> Recovered:
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
        contents = read_log(folder)
        snapshots = SnapshotFiles(folder)
        snapshot = snapshots.load()
        replay = make_replay(budget)
        next_chunk = restore(replay, contents, snapshot)
        replay.memory.count()
        files = BlobFiles(folder)
        warm_up(replay, files, budget)
        files.close()
    except OSError as error:
        folder.close()
        raise FatalError(f"cannot restore the replay log in {path}: {error}") from error
    except BaseException:
        folder.close()
        raise
    damage = contents.damage
    damage.records += replay.damaged_chunks + snapshots.damaged
    replay.damaged_chunks = 0  # those are counted now
    position = LogPosition(
        segment=max(contents.segment_sizes, default=0) + 1,
        sequence=max(contents.sequence, snapshot.sequence if snapshot is not None else 0),
        next_chunk=next_chunk,
    )
    return Recovered(
        folder=folder,
        replay=replay,
        budget=budget,
        snapshots=snapshots,
        position=position,
        segment_sizes=contents.segment_sizes,
        damage=damage,
        items=sum(table.size for table in replay.tables),
        dropped=sum(table.counters.corrupt_items for table in replay.tables),
        took_s=time.monotonic() - started,
    )
