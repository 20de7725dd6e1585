"""`tidemill replay inspect FOLDER`: reports what the log of a stopped replay service holds and what is corrupt."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tidemill.errors import FatalError
from tidemill.services.replay.chunks.blob_reader import BlobFiles
from tidemill.services.replay.chunks.logged_blocks import LoggedBlocks, logged
from tidemill.services.replay.chunks.store import ChunkStore
from tidemill.services.replay.log.frame import FORMAT
from tidemill.services.replay.log.inspect_table import describe_table
from tidemill.services.replay.log.open import FolderContents, read_folder
from tidemill.services.replay.log.rebuild import rebuild
from tidemill.services.replay.log.segments import LogFolder
from tidemill.services.replay.memory import MemoryBudget
from tidemill.services.replay.state import ReplayState

_BATCH = 1024
_UNLIMITED = 2**31 - 1
_ABOUT = """Reads the log of a replay service that is stopped, checks every byte that a start would need, and says what
is in it: its tables, their items by priority, age, times sampled and writer, and one of them decoded; its segments and
the chunks and items in use in each; what is corrupt, missing or lost. Nothing is changed. The exit code is 0 for an
intact log, 1 for a corrupt one; an unfinished record at the end, as a killed service leaves it, is no corruption."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in a log.

    Attributes:
        found: The contents of its files.
        replay: The state that a start would bring back.
        lost: Items of each table that it would not, by the table's number.
        corrupt_chunks: Chunks whose bytes are corrupt.
    """

    found: FolderContents
    replay: ReplayState
    lost: dict[int, int]
    corrupt_chunks: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing is corrupt or lost."""
        return not (self.found.contents.corruption.is_any or self.corrupt_chunks or any(self.lost.values()))


def main(arguments: Sequence[str]) -> int:
    """Inspect a log; return 1 if anything in it is corrupt.

    Raises:
        FatalError: there is no log, it has another format, or a replay service uses it.
    """
    parser = argparse.ArgumentParser(prog="tidemill replay inspect", description=_ABOUT)
    parser.add_argument("folder", type=Path, help="folder of the log, replay.storage.folder: RUN/replay/0 of a run")
    path = parser.parse_args(arguments).folder
    if not path.is_dir():
        raise FatalError(f"{path} is no folder; give the one of a replay log, such as runs/NAME/replay/0")
    folder = LogFolder(path, advice="stop it first")
    try:
        if not folder.has_log:
            raise FatalError(f"no replay log is in {path}; give the folder that holds NNNNNNNN.log files")
        inspection = inspect(folder)
        with closing(BlobFiles(folder)) as files:
            for table in inspection.replay.tables:
                print("\n".join(describe_table(table, inspection.replay.streams, files)), end="\n\n")
        print("\n".join(report(inspection, path)))
    finally:
        folder.close()
    return 0 if inspection.is_whole else 1


def inspect(folder: LogFolder) -> Inspection:
    """Read a log as a start would, and every chunk that is in use; nothing is changed.

    Raises:
        FatalError: it has files of another format.
    """
    found = read_folder(folder)
    budget = MemoryBudget(0)
    replay = ReplayState(
        max_tables=_UNLIMITED,
        max_streams=_UNLIMITED,
        first_epoch=1,
        rng=np.random.default_rng(0),
        budget=budget,
        make_blocks=partial(LoggedBlocks, budget=budget),
    )
    _, lost = rebuild(replay, found.contents, found.snapshot)
    files = BlobFiles(folder)
    counted = {table: table.counters.corrupt_items for table in replay.tables}
    for store in replay.stores:
        for chunk in _corrupt_chunks(store, files):
            replay.drop_chunk(store, chunk)
    files.close()
    for table, before in counted.items():
        lost[replay.number_of(table)] += table.counters.corrupt_items - before
    return Inspection(found, replay, lost, replay.corrupt_chunks)


def report(inspection: Inspection, path: Path) -> Iterator[str]:
    """Yield what is said of a log, line by line."""
    found, replay = inspection.found, inspection.replay
    contents, corruption, snapshot = found.contents, found.contents.corruption, found.snapshot
    size = sum(contents.segment_sizes.values())
    yield f"{path}: format {FORMAT}, {len(contents.segment_sizes)} segments, {size:,} bytes"
    taken = f"snapshot of record {snapshot.sequence}" if snapshot is not None else "no snapshot"
    yield f"newest record {contents.chain.sequence}, {taken}"
    yield f"{replay.streams.count} streams, {replay.env_steps:,} agent decisions, {replay.chunks:,} chunks"
    yield from ("", f"{'table':24} {'items':>12} {'lost':>12}")
    names = {replay.number_of(table): (table.config.name, table.size) for table in replay.tables}
    for number in sorted(names.keys() | inspection.lost.keys()):
        name, items = names.get(number, (f"(number {number}, unknown)", 0))
        yield f"{name:24} {items:12,} {inspection.lost.get(number, 0):12,}"
    yield from ("", f"{'segment':>8} {'bytes':>14} {'records':>10} {'chunks':>10} {'items':>10}")
    for number, records in contents.segment_records.items():
        chunks = sum(int(np.count_nonzero(_segments_of(store) == number)) for store in replay.stores)
        items = sum(int(np.count_nonzero(t.items.segments[t.items.live()] == number)) for t in replay.tables)
        yield f"{number:8} {contents.segment_sizes[number]:14,} {records:10,} {chunks:10,} {items:10,}"
    yield ""
    yield from corruption.notes
    if corruption.torn_bytes:
        yield f"the last {corruption.torn_bytes} bytes are an unfinished record; the next start truncates them"
    yield verdict(inspection)


def verdict(inspection: Inspection) -> str:
    """Return one line on what is corrupt."""
    if inspection.is_whole:
        return "whole"
    corruption = inspection.found.contents.corruption
    return (
        f"CORRUPT: {corruption.records} records corrupt, {corruption.missing_records} lost, "
        f"{len(corruption.missing_segments)} segments missing, {inspection.corrupt_chunks} chunks corrupt, "
        f"{sum(inspection.lost.values())} items lost"
    )


def _corrupt_chunks(store: ChunkStore, files: BlobFiles) -> list[int]:
    """Return the chunks in use whose bytes are not what was written."""
    blocks = logged(store)
    held = store.held()
    corrupt = []
    for start in range(0, len(held), _BATCH):
        batch = held[start : start + _BATCH]
        read = files.read(blocks.locations(batch))
        corrupt += [slot for slot, blob in zip(batch.tolist(), read, strict=True) if blob is None]
    return corrupt


def _segments_of(store: ChunkStore) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return logged(store).segments[store.held()]
