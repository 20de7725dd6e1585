"""Snapshots: what they bring back, and that one is there whole or not at all."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_streams import (
    append,
    make_chunk,
    make_config,
    make_items,
    make_replay,
    open_streams,
    sample_from,
)
from tests.unit.replay.logs import open_log
from tidemill.errors import FatalError
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind
from tidemill.services.replay.leases import Leases
from tidemill.services.replay.log.segments import LogFolder
from tidemill.services.replay.log.snapshot import (
    ITEM_STATE,
    Snapshot,
    SnapshotFiles,
    Snapshotter,
    TableSnapshot,
    decode_snapshot,
    encode_snapshot,
    item_states,
)
from tidemill.services.replay.tables.items import Items, NewItems
from tidemill.services.replay.tables.stats import STATS_FIELDS

MARK = b"12345678"


def make_snapshot(count: int = 5) -> Snapshot:
    """Return a snapshot of one table with items in two slices."""
    items = Items(16)
    numbers = np.arange(count)
    slots = items.add(NewItems(numbers, numbers, numbers + 1, numbers.astype(np.float64)))
    stats = np.arange(STATS_FIELDS)
    return Snapshot(
        9,
        [TableSnapshot(3, stats, [item_states(items, slots[:2]), item_states(items, slots[2:])], {"name": "t"})],
        5,
        True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> LogFolder:
    """An empty folder."""
    return LogFolder(tmp_path)


def test_snapshot_comes_back_as_it_was_written() -> None:
    """Sequence number, counters and every item's state survive."""
    snapshot = make_snapshot()
    found = decode_snapshot(b"".join(encode_snapshot(snapshot, MARK)), MARK, "here")
    assert found is not None
    assert (found.sequence, found.segment, found.is_last) == (9, 5, True)
    assert [(table.number, table.config) for table in found.tables] == [(3, {"name": "t"})]
    np.testing.assert_array_equal(found.tables[0].stats, snapshot.tables[0].stats)
    for written, read in zip(snapshot.tables[0].slices, found.tables[0].slices, strict=True):
        assert read.dtype == ITEM_STATE
        np.testing.assert_array_equal(read, written)


def test_snapshot_corrupt_at_any_byte_is_not_used() -> None:
    """A flipped bit anywhere, or any byte missing at the end, makes it none."""
    data = b"".join(encode_snapshot(make_snapshot(), MARK))
    for position in range(len(data)):
        flipped = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        assert decode_snapshot(flipped, MARK, "here") is None, position
        assert decode_snapshot(data[:position], MARK, "here") is None, position


def test_newest_intact_snapshot_is_loaded(folder: LogFolder) -> None:
    """A corrupt one is counted and the one before it is used."""
    files = SnapshotFiles(folder, MARK)
    assert [files.write(make_snapshot(count)) for count in (3, 4)] == [1, 2]
    newest = folder.path / "00000002.snapshot"
    newest.write_bytes(newest.read_bytes()[:-1])
    again = SnapshotFiles(folder, MARK)
    loaded = again.load()
    assert loaded is not None
    assert sum(len(piece) for piece in loaded.tables[0].slices) == 3
    assert again.corrupt == ["00000002.snapshot"]
    assert again.write(make_snapshot()) == 3


def test_only_the_newest_two_are_kept(folder: LogFolder) -> None:
    """Old snapshots are deleted as new ones are written."""
    files = SnapshotFiles(folder, MARK)
    for _ in range(4):
        files.write(make_snapshot())
    assert sorted(path.name for path in folder.path.glob("*.snapshot")) == ["00000003.snapshot", "00000004.snapshot"]


def test_interrupted_snapshot_is_as_if_it_had_not_begun(folder: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refuses leaves the older one; what a killed process left is removed."""
    files = SnapshotFiles(folder, MARK)
    files.write(make_snapshot(3))

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            files.write(make_snapshot(4))
    assert [path.name for path in folder.path.iterdir() if "snapshot" in path.name] == ["00000001.snapshot"]
    (folder.path / "00000002.snapshot.tmp").write_bytes(b"half")
    again = SnapshotFiles(folder, MARK)
    again.remove_drafts()
    assert again.newest == 1
    assert not list(folder.path.glob("*.tmp"))


def test_snapshot_of_another_format_is_refused(folder: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the file, what it has and what is read."""
    monkeypatch.setattr("tidemill.services.replay.log.frame.FORMAT", 7)
    SnapshotFiles(folder, b"another!").write(make_snapshot())
    monkeypatch.undo()
    with pytest.raises(FatalError, match=naming("00000001.snapshot 7 3")):
        SnapshotFiles(folder, MARK).load()


def test_restart_has_priorities_counts_and_counters_of_the_snapshot(tmp_path: Path) -> None:
    """Updated priorities, times sampled, counters and the limiter's diff come back; a removed item stays removed."""
    config = make_config(
        sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0),
        max_times_sampled=3,
        limiter=RateLimiterConfig(min_size=1, samples_per_insert=2.0, error_buffer=50.0),
    )
    log = open_log(tmp_path)
    log.replay.create_table(config)
    table = log.replay.find("t")
    session = open_streams(log.replay)
    append(log.replay, session, [make_chunk(0, 0, 0, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])
    keys = sample_from(table, 4, without_replacement=True).keys
    table.update_priorities(keys, np.array([0.0, 2.0, 4.0, 8.0]))
    sample_from(table, 5)
    log.snapshot()
    diff, total_weight, counters = table.limiter.diff, table.total_weight, table.counters
    times = table.items.times_sampled[table.items.live()].tolist()
    log.crash()
    again = open_log(tmp_path)
    restored = again.replay.find("t")
    assert (restored.limiter.diff, restored.total_weight, restored.counters) == (diff, total_weight, counters)
    assert restored.items.times_sampled[restored.items.live()].tolist() == times
    assert restored.items.keys(restored.items.live()).tolist() == table.items.keys(table.items.live()).tolist()
    assert counters.samples == 9
    left = 3 * 3 - (9 - 1)  # the item of priority 0 was sampled once and cannot be any more
    assert restored.has_draws(left)
    assert not restored.has_draws(left + 1)
    again.crash()


@pytest.mark.parametrize("caller_settles", [True, False])
def test_items_of_a_settled_batch_are_gone_after_a_kill_before_any_insert(caller_settles: bool, tmp_path: Path) -> None:
    """They do not wait for an insert to be logged: a learner that paces its actors has trained on them."""
    log = open_log(tmp_path)
    log.replay.create_table(make_config(sampler=SelectorConfig(SelectorKind.FIFO), max_times_sampled=1))
    table = log.replay.find("t")
    items = make_items(0, [(0, i, 1) for i in range(4)])
    append(log.replay, open_streams(log.replay), [make_chunk(0, 0, 0, 4)], [items])
    leases = Leases(table, lambda: None, log.replay.log_removed, caller_settles=caller_settles)
    drawn = table.draw(2)
    number = leases.sent(drawn.batch, drawn.eras, 2)
    if caller_settles:
        leases.settle(number, returned=False)
    left = table.items.keys(table.items.live()).tolist()
    log.crash()
    again = open_log(tmp_path)
    restored = again.replay.find("t")
    assert len(left) == 2
    assert restored.items.keys(restored.items.live()).tolist() == left
    again.crash()


async def test_change_while_a_snapshot_is_written_is_in_the_next() -> None:
    """It came after what the snapshot has; nothing else may change for hours. Memory may be full for a while."""
    replay = make_replay(make_config())
    append(replay, open_streams(replay), [make_chunk(0, 0, 0, 4)], [make_items(0, [(0, 0, 1)])])
    table = replay.find("t")
    written, failures = list[int](), iter([MemoryError()])

    def write(_snapshot: Snapshot) -> int:
        if not written:
            table.update_priorities(table.items.keys(table.items.live()), np.array([5.0]))
        elif error := next(failures, None):
            raise error
        written.append(len(written))
        return len(written)

    snapshotter = Snapshotter(
        replay, cast(Any, Mock(sequence=0, segment=1)), cast(Any, Mock(write=write)), AsyncMock(return_value=0)
    )
    await snapshotter.take()
    every = asyncio.create_task(snapshotter.take_every(0.01))
    for _ in range(6000):
        await asyncio.sleep(0.01)
        if len(written) > 1:
            break
    every.cancel()
    assert len(written) == 2, "it was never taken, or again without a change"


async def test_items_that_come_while_a_snapshot_is_copied_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counters do not have them: after a power cut they would count as lost, and others get their numbers."""
    monkeypatch.setattr("tidemill.services.replay.log.snapshot._SLICE", 2)
    replay = make_replay(make_config(max_items=5))
    session, table = open_streams(replay), replay.find("t")
    append(replay, session, [make_chunk(0, 0, 0, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])
    write = Mock(return_value=1)
    snapshotter = Snapshotter(
        replay, cast(Any, Mock(sequence=0, segment=1)), cast(Any, Mock(write=write)), AsyncMock(return_value=0)
    )
    taking = asyncio.create_task(snapshotter.take())
    await asyncio.sleep(0)  # the first slice is copied
    append(replay, session, [make_chunk(0, 0, 4, 4)], [make_items(0, [(0, i, 1) for i in range(2)])])
    await taking
    (copied,) = write.call_args.args[0].tables
    assert table.items.inserted == 6
    assert np.concatenate([piece["number"] for piece in copied.slices]).tolist() == [0, 1, 2, 3]
