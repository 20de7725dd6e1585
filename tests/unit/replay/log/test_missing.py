"""Logs of which records or whole files are missing: nothing that went comes back, and what is lost is counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests.support.replay_streams import (
    FIFO,
    UNIFORM,
    append,
    make_chunk,
    make_config,
    make_items,
    open_streams,
)
from tests.support.simulated_disk import PowerCutError, SimulatedDisk
from tests.unit.replay.logs import Log, open_log
from tidemill.replay.table_config import TableConfig
from tidemill.services.replay.log.frame import HEADER_BYTES, Kind, scan
from tidemill.services.replay.log.open import read_folder
from tidemill.services.replay.log.segments import NEWEST, LogFolder
from tidemill.services.replay.state.append import AppendSession
from tidemill.services.replay.tables.table import Table

SEGMENT_BYTES = 3000
Keys = set[int]


def keys(log: Log) -> Keys:
    """Return the keys of every item there is."""
    return {key for table in log.replay.tables for key in table.items.keys(table.items.live()).tolist()}


@dataclass
class Run:
    """A server that appends and deletes, and what it had after each record.

    Attributes:
        folder: Of its log.
        config: Of its table.
        log: The log.
        had: The keys of all items after each record, by its number.
    """

    folder: Path
    config: TableConfig
    log: Log = field(init=False)
    had: dict[int, Keys] = field(default_factory=dict)
    _is_up: bool = True
    _step: int = 0
    _appending: AppendSession | None = None

    def __post_init__(self) -> None:
        """Begin a log."""
        self.log = open_log(self.folder, SEGMENT_BYTES)
        self.log.replay.create_table(self.config)
        self._note()

    @property
    def table(self) -> Table:
        """The table."""
        return self.log.replay.find("t")

    def append(self, messages: int = 1) -> None:
        """Append messages of one chunk and four items each."""
        for _ in range(messages):
            if self._appending is None:
                self._appending = open_streams(self.log.replay)
            items = make_items(0, [(0, i, 1) for i in range(4)])
            append(self.log.replay, self._appending, [make_chunk(0, 0, self._step, 4)], [items])
            self._step += 4
            self._note()

    def delete(self, count: int, rng: random.Random) -> None:
        """Delete some items."""
        live = self.table.items.live().tolist()
        picked = rng.sample(live, min(count, len(live)))
        self.log.replay.delete(self.table, self.table.items.keys(np.array(picked, dtype=np.int64)))
        self._note()

    def compact(self) -> None:
        """Delete and move old segments."""
        self.log.compact()
        self._note()

    def kill(self) -> None:
        """Kill the server."""
        self.log.crash()
        self._is_up = False

    def restart(self) -> Keys:
        """Kill the server if it is up, and start it again; return the items that are there."""
        if self._is_up:
            self.kill()
        self._is_up = True
        self.log = open_log(self.folder, SEGMENT_BYTES)
        self._appending = None
        return keys(self.log)

    def resume(self) -> None:
        """Have the actor start from scratch, as it does when its epoch is not known."""
        self.log.replay.create_table(self.config)
        self._step = 0
        self._note()

    def _note(self) -> None:
        self.had[self.log.journal.sequence] = keys(self.log)

    def had_at(self, sequence: int) -> Keys:
        """Return the keys of the items after a record."""
        return self.had[max((number for number in self.had if number <= sequence), default=min(self.had))]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A table of 40 items, ten times turned over, in many segments."""
    made = Run(tmp_path, make_config(max_items=40, remover=UNIFORM))
    made.append(100)
    return made


def files(run: Run, number: int) -> list[Path]:
    """Return the files of a segment: its records and their copies."""
    folder = run.log.recovered.folder
    return [folder.segment(number), folder.copies(number)]


def test_newest_segment_deleted_costs_its_own_items(run: Run) -> None:
    """The copies say what went in it: all else is there, and every lost item is counted."""
    before = keys(run.log)
    newest = run.log.journal.segment
    in_newest = set(
        run.table.items.keys(
            run.table.items.live()[run.table.items.segments[run.table.items.live()] == newest]
        ).tolist()
    )
    files(run, newest)[0].unlink()
    after = run.restart()
    assert after == before - in_newest
    assert run.log.recovered.dropped == len(in_newest) > 0
    assert run.log.recovered.corruption.missing_segments == [newest]
    assert run.restart() == after


def test_newest_segment_deleted_with_its_copies_brings_nothing_back(run: Run) -> None:
    """Nobody knows what went in it, so that no item is trusted; a table is there, and all it had counts as lost."""
    newest = run.log.journal.segment
    for path in files(run, newest):
        path.unlink()
    assert run.restart() == set()
    recovered = run.log.recovered
    assert recovered.dropped == 40
    assert recovered.corruption.missing_segments == [newest]
    assert recovered.corruption.missing_records > 0
    assert run.log.journal.segment == newest + 1
    assert run.restart() == set()
    run.resume()
    run.append(3)
    assert run.restart() == run.had[max(run.had)] != set()


def test_server_killed_before_it_told_what_it_dropped_drops_it_again(run: Run) -> None:
    """The first record after a lost end says that something may have gone in it, before the second says what."""
    for path in files(run, run.log.journal.segment):
        path.unlink()
    assert run.restart() == set()
    run.kill()
    mark = run.log.recovered.chain.mark
    for path in files(run, run.log.journal.segment):
        data = path.read_bytes()
        first, *others = scan(memoryview(data), mark).frames
        assert first.kind is Kind.SEGMENT
        assert others
        path.write_bytes(data[: first.end])
    assert run.restart() == set()


def test_segment_before_the_deleted_newest_counts_too(run: Run) -> None:
    """All its records, for it is noted where the newest began; of that one its first record and at least one more."""
    newest = run.log.journal.segment
    before_it = files(run, newest - 1)
    data = memoryview(before_it[0].read_bytes())
    records = len(scan(data, run.log.recovered.chain.mark).frames)
    for path in [*before_it, *files(run, newest)]:
        path.unlink()
    run.restart()
    corruption = run.log.recovered.corruption
    assert corruption.missing_segments == [newest - 1, newest]
    assert corruption.missing_records == records + 2


def test_newest_segment_deleted_after_a_stop_costs_its_own_items(run: Run) -> None:
    """The last snapshot of a server that was stopped names every item, so that all others are trusted."""
    run.log.snapshot(is_last=True)
    before, newest = keys(run.log), run.log.journal.segment
    for path in files(run, newest):
        path.unlink()
    after = run.restart()
    assert run.log.recovered.corruption.missing_segments == [newest]
    assert set() < after < before
    assert run.log.recovered.dropped == len(before - after)
    assert run.restart() == after


def test_older_segment_missing_costs_its_own_items_once_a_snapshot_is_behind_it(run: Run) -> None:
    """A snapshot says which items had not gone by then."""
    middle = run.log.journal.segment - 2
    run.log.snapshot()
    run.append(2)
    before = keys(run.log)
    for path in files(run, middle):
        path.unlink()
    after = run.restart()
    assert set() < after < before
    assert run.log.recovered.dropped == len(before - after)
    assert run.log.recovered.corruption.missing_segments == [middle]
    assert run.restart() == after


def test_segment_missing_from_a_table_that_lost_no_item_costs_its_own_alone(tmp_path: Path) -> None:
    """The count of what went is the same before and behind the gap: nothing went in it."""
    run = Run(tmp_path, make_config(max_items=1000))
    run.append(60)
    before = keys(run.log)
    for path in files(run, 2):
        path.unlink()
    after = run.restart()
    assert 200 < len(after) < 240
    assert run.log.recovered.dropped == len(before - after) > 0


def test_server_killed_as_it_deletes_a_segment_has_lost_nothing(run: Run) -> None:
    """Its copies go first: alone, they would be all that is left of lost records."""
    before, folder = keys(run.log), run.log.recovered.folder
    with SimulatedDisk(run.folder, 1), pytest.raises(PowerCutError):
        folder.remove(folder.segments()[0])
    assert run.restart() == before
    assert not run.log.recovered.corruption.is_any


@pytest.mark.parametrize("with_copies", [False, True])
def test_segments_under_each_others_names_bring_nothing_back(run: Run, with_copies: bool) -> None:
    """They are set aside, reported, and count as missing."""
    before = keys(run.log)
    one, two = (files(run, run.log.journal.segment - back) for back in (1, 2))
    for a, b in list(zip(one, two, strict=True))[: 1 + with_copies]:
        kept = a.read_bytes()
        b.replace(a)
        b.write_bytes(kept)
    after = run.restart()
    corruption = run.log.recovered.corruption
    assert after <= before
    assert run.log.recovered.dropped == len(before - after)
    assert len(corruption.missing_segments) == 2
    assert sum("under another name" in note for note in corruption.notes) == 2 * (1 + with_copies)
    assert all(path.with_name(path.name + ".unreadable").exists() for path in (one[0], two[0]))


def test_segment_of_an_earlier_copy_of_the_log_is_noticed(run: Run) -> None:
    """A record must name the one before: one of the same number that was written before a restart does not fit."""
    sizes = {path.name: path.read_bytes() for path in run.folder.iterdir() if path.is_file()}
    run.append(4)
    stale = run.log.files[-1].read_bytes()
    stale_name = run.log.files[-1].name
    run.kill()
    for path in run.folder.iterdir():
        path.unlink()
    for name, data in sizes.items():
        (run.folder / name).write_bytes(data)
    run.restart()
    run.resume()
    run.append(12)
    run.append(1)
    (run.folder / stale_name).write_bytes(stale)
    now = keys(run.log)
    assert run.restart() <= now
    assert run.log.recovered.corruption.is_any


def test_note_of_the_newest_segment_missing_is_reported(run: Run) -> None:
    """Nothing is lost, but the loss of the newest segment could not be noticed."""
    before = keys(run.log)
    (run.folder / NEWEST).unlink()
    assert run.restart() == before
    assert run.log.recovered.corruption.records == 1
    assert run.restart() == before
    assert not run.log.recovered.corruption.is_any  # the new segment is noted


def test_corrupt_record_with_corrupt_copy_brings_nothing_back(run: Run) -> None:
    """What the record said was removed is unknown: items from before it are not trusted, those since are."""
    since = run.log.journal.sequence
    run.append(3)
    before = keys(run.log)
    mark = run.log.recovered.chain.mark
    for path in files(run, run.log.journal.segment):
        data = bytearray(path.read_bytes())
        frames = [f for f in scan(memoryview(bytes(data)), mark).frames if f.kind is Kind.CHANGES]
        data[next(f.start for f in frames if f.sequence >= since + 1) + HEADER_BYTES] ^= 1
        path.write_bytes(data)
    after = run.restart()
    assert set() < after < before
    assert run.log.recovered.dropped == len(before - after)
    assert run.restart() == after


def _flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


def _cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size + 1)])


def _delete(path: Path, _: random.Random) -> None:
    path.unlink()


CORRUPTIONS: tuple[Callable[[Path, random.Random], None], ...] = (_flip, _flip, _cut, _delete)


@pytest.mark.parametrize("seed", range(80))
def test_what_went_never_comes_back_and_what_is_lost_is_counted(tmp_path: Path, seed: int) -> None:
    """Random operations, corruption of one to three files, two restarts, more operations, and a third restart."""
    rng = random.Random(seed)
    run = Run(tmp_path, make_config(max_items=rng.choice([10, 20, 40]), remover=rng.choice([FIFO, UNIFORM])))
    _operate(run, rng)
    if rng.random() < 0.3:
        run.log.snapshot(is_last=rng.random() < 0.5)
    live = keys(run.log)
    run.kill()
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        path = rng.choice(sorted(path for path in tmp_path.iterdir() if path.name != ".lock"))
        rng.choice(CORRUPTIONS)(path, rng)
    folder = LogFolder(tmp_path)
    contents = read_folder(folder).contents
    folder.close()
    after = run.restart()
    then = live if contents.end_is_lost else run.had_at(contents.chain.sequence)  # or the state before a torn end
    recovered = run.log.recovered
    assert after <= then
    if then - after:
        assert recovered.corruption.is_any or recovered.dropped
        assert recovered.dropped >= len(then - after) or contents.chain.gaps
    assert run.restart() == after
    run.resume()
    _operate(run, rng)
    live = keys(run.log)
    assert run.restart() == live


def _operate(run: Run, rng: random.Random) -> None:
    for _ in range(rng.randrange(5, 50)):
        choice = rng.random()
        if choice < 0.75:
            run.append()
        elif choice < 0.9:
            run.delete(3, rng)
        elif choice < 0.95:
            run.log.snapshot()
        else:
            run.compact()
