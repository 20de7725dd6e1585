"""`tidemill replay inspect FOLDER`: reports what the log of a stopped replay service holds and what is corrupt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.errors import FatalError
from tidemill.replay.codec import decode
from tidemill.replay.table_config import describe_limiter
from tidemill.services.replay.chunks.store import ChunkStore
from tidemill.services.replay.log.blob_reader import BlobFiles
from tidemill.services.replay.log.frame import FORMAT
from tidemill.services.replay.log.logged_blocks import LoggedBlocks, logged
from tidemill.services.replay.log.open import FolderContents, read_folder
from tidemill.services.replay.log.rebuild import rebuild
from tidemill.services.replay.log.segments import LogFolder
from tidemill.services.replay.state.memory import MemoryBudget
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.state.streams import StreamRegistry, places_of
from tidemill.services.replay.tables.sampled_items import locate
from tidemill.services.replay.tables.table import Table
from tidemill.settings.argument_parser import ArgumentParser

_MOST_ROWS = 12  # of a histogram
_BAR = 40  # characters of the longest
_NEWEST = 1000  # items by which a writer's present rate is judged
_MOST_WRITERS = 20


def describe_table(table: Table, streams: StreamRegistry, files: BlobFiles) -> Iterator[str]:
    """Yield what is said of a table of a log, line by line.

    Args:
        table: The table, its chunks intact.
        streams: Whose its streams are.
        files: Reads the chunks.
    """
    config, counters, slots = table.config, table.counters, table.items.oldest_first()
    exponent = f" with exponent {config.sampler.priority_exponent:g}" if config.sampler.priority_exponent else ""
    yield f"table {config.name}: {table.size:,} of at most {config.max_items:,} items, {table.held_bytes:,} bytes"
    yield f"  {config.sampler.kind.value} sampler{exponent}, {config.remover.kind.value} remover"
    yield f"  {counters.inserts:,} inserts, {counters.samples:,} samples, {counters.evictions:,} evictions"
    yield f"  {describe_limiter(config.rate_limiter, is_on=table.limiter.is_on)}"
    if not len(slots):
        return
    yield from histogram("priorities", table.items.priorities[slots], 10)
    yield from histogram("ages, in items inserted since", table.items.ages(slots), 2)
    yield from histogram("times sampled, as of the newest snapshot", table.items.times_sampled[slots], 2)
    yield from _writers(table, streams, slots)
    yield from _item(table, files, slots[-1:])


def histogram(name: str, values: NDArray[np.generic], base: int) -> Iterator[str]:
    """Yield a title and, from the least, how many of values [N] lie between two powers of a base."""
    numbers = values.astype(np.float64)
    lowest, median, highest = np.quantile(numbers, (0.0, 0.5, 1.0))
    yield f"  {name}: {lowest:,.6g} to {highest:,.6g}, median {median:,.6g}"
    positive, width = numbers[numbers > 0], 1
    powers = np.floor(np.log(positive) / np.log(base) + 1e-9).astype(np.int64)
    if len(powers):
        width = int(powers.max() - powers.min()) // _MOST_ROWS + 1
    negative = int(np.count_nonzero(numbers < 0))
    counts = [("below 0", negative), ("0", len(numbers) - len(positive) - negative)]
    for low in range(int(powers.min(initial=0)), int(powers.max(initial=-1)) + 1, width):
        count = int(np.count_nonzero((powers >= low) & (powers < low + width)))
        counts.append((f"{float(base) ** low:,.6g} to below {float(base) ** (low + width):,.6g}", count))
    most = max(count for _, count in counts)
    for label, count in counts:
        if count:
            yield f"  {label:>30} {count:12,} {'#' * -(-_BAR * count // most)}"


def _writers(table: Table, streams: StreamRegistry, slots: Ints) -> Iterator[str]:
    """Yield how many items each writer has, of all and of the newest, and how many of its steps the table needs."""
    known = streams.known
    names = [*sorted({one.actor_id for one in known}), "(unknown)"]
    writer_of = np.array([*(names.index(one.actor_id) for one in known), len(names) - 1])
    writers = writer_of[places_of(table.store.streams_of(table.items.first_chunks[slots].astype(np.int64)), known)]
    chunks = table.chunks()
    steps = np.bincount(
        writer_of[places_of(table.store.streams_of(chunks), known)], table.store.step_counts(chunks), len(names)
    )
    items = np.bincount(writers, minlength=len(names))
    newest = np.bincount(writers[-_NEWEST:], minlength=len(names)) / len(writers[-_NEWEST:])
    yield f"  {'writer':32} {'items':>12} {'of all':>8} {'of newest':>10} {'steps':>12}"
    order = [int(i) for i in np.argsort(-items, kind="stable") if items[i]]
    for i in order[:_MOST_WRITERS]:
        yield f"  {names[i]:32} {items[i]:12,} {items[i] / len(slots):8.1%} {newest[i]:10.1%} {int(steps[i]):12,}"
    if len(order) > _MOST_WRITERS:
        yield f"  and {len(order) - _MOST_WRITERS} more"


def _item(table: Table, files: BlobFiles, slot: Ints) -> Iterator[str]:
    """Yield the columns of one item, decoded."""
    store, signature = table.store, table.config.signature
    blocks = logged(store)
    found = locate(table.items, store, slot, np.ones(1), (table.size, table.total_weight))
    blobs = [blob for blob in files.read(blocks.locations(found.chunks)) if blob is not None]
    batch = found.with_blocks(blocks.cut(found.chunks, blobs, found.batch.step_counts))
    decoded = decode(signature, batch, int(batch.lengths[0]))
    payload = f", payload of {len(batch.payloads[0])} bytes" if batch.payloads else ""
    yield f"  the newest item, key {int(batch.keys[0])}, {int(batch.lengths[0])} steps{payload}:"
    for column in signature:
        values = decoded.columns[column.name][decoded.index[0]]
        few = np.array2string(values.reshape(-1)[:6], precision=4, separator=", ", threshold=6)
        more = " ..." if values.size > 6 else ""
        yield f"    {column.name:24} {values.dtype} {list(values.shape)}, {_range(values)}: {few}{more}"


def _range(values: NDArray[np.generic]) -> str:
    numbers = values.astype(np.float64)
    return f"{numbers.min():.6g} to {numbers.max():.6g}"


_BATCH = 1024
_UNLIMITED = 2**31 - 1
_ABOUT = """Check the log of a stopped replay service, and report what is in it. Nothing is changed. Every byte that a
start would need is read. The report lists the tables with their items by priority, age, times sampled and writer, and
decodes one item. It lists the segments with the chunks and items in use, and whatever is corrupt, missing or lost. The
exit code is 0 for an intact log and 1 for a corrupt one. A killed service may leave an unfinished record at the end;
that is not corruption."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Contents of a log.

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
    """Inspect a log, or those of a run; return 1 if anything in them is corrupt.

    Raises:
        FatalError: there is no log, it has another format, or a replay service uses it.
    """
    parser = ArgumentParser(prog="tidemill replay inspect", description=_ABOUT)
    parser.add_argument(
        "folder", type=Path, help="folder of the log, replay.storage.folder; or a run, whose shards are read one by one"
    )
    path = parser.parse_args(arguments).folder
    if not path.is_dir():
        raise FatalError(f"{path} is not a folder; give the one of a replay log, such as runs/NAME/replay/0")
    shards = _shards_in(path)
    whole = []
    for each in shards:
        if len(shards) > 1:
            print(f"== {each}")
        whole.append(_inspect_one(each))
    return 0 if all(whole) else 1


def _shards_in(path: Path) -> list[Path]:
    """Return the folders of the logs in a run, or in its replay folder; the folder itself if there are none below."""
    below = (each for folder in (path, path / "replay") for each in folder.glob("*/*.log") if each.stem.isdigit())
    return sorted({file.parent for file in below}, key=lambda each: (len(each.name), each.name)) or [path]


def _inspect_one(path: Path) -> bool:
    """Print what is in a log; return whether it is whole."""
    folder = LogFolder(path, advice="stop it first", read_only=True)
    try:
        if not folder.has_log:
            raise FatalError(f"no replay log is in {path}; give the folder that holds NNNNNNNN.log files")
        try:
            inspection = inspect(folder)
        except OSError as error:
            raise FatalError(f"cannot read the replay log in {path}: {error}") from error
        with closing(BlobFiles(folder)) as files:
            for table in inspection.replay.tables:
                print("\n".join(describe_table(table, inspection.replay.streams, files)), end="\n\n")
        print("\n".join(report(inspection, path)))
    finally:
        folder.close()
    return inspection.is_whole


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
    files = BlobFiles(folder)
    _, lost = rebuild(replay, found.contents, found.snapshot, files)
    counted = {table: table.counters.corrupt_items for table in replay.tables}
    for store in replay.stores:
        replay.drop_chunks(store, _corrupt_chunks(store, files))
    files.close()
    for table, before in counted.items():
        lost[table.number] += table.counters.corrupt_items - before
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
    names = {table.number: (table.config.name, table.size) for table in replay.tables}
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


def _corrupt_chunks(store: ChunkStore, files: BlobFiles) -> Ints:
    """Return the chunks in use whose bytes are not what was written."""
    blocks = logged(store)
    held = store.held()
    corrupt = []
    for start in range(0, len(held), _BATCH):
        batch = held[start : start + _BATCH]
        read = files.read(blocks.locations(batch))
        corrupt += [slot for slot, blob in zip(batch.tolist(), read, strict=True) if blob is None]
    return np.array(corrupt, dtype=np.int64)


def _segments_of(store: ChunkStore) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return logged(store).segments[store.held()]
