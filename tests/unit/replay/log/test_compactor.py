"""What the log keeps on disk: segments go with their last item, and what lives long does not keep the rest."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from tests.support.damage import flip
from tests.support.replay_streams import (
    FIFO,
    append,
    make_chunk,
    make_config,
    make_items,
    open_streams,
    steps_of,
)
from tests.unit.replay.logs import AtOnce, Log, open_log, sample_all, unreadable
from tidemill.config.services import StorageSettings
from tidemill.errors import Unavailable
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.services.replay.chunks.store import ChunkStore
from tidemill.services.replay.log.blob_reader import BlobFiles, BlobReader
from tidemill.services.replay.log.compactor import Compactor, Garbage, chunks_in
from tidemill.services.replay.log.log import ReplayLog
from tidemill.services.replay.log.logged_blocks import logged
from tidemill.services.replay.state.change_sink import NewChunks
from tidemill.services.replay.tables.items import Items

SEGMENT_BYTES = 4000
LOWEST_FIRST = SelectorConfig(SelectorKind.MIN_HEAP)


def filled(folder: Path, config: TableConfig, chunks: int, keep: int = 0) -> tuple[Log, int]:
    """Write chunks with an item each, cleaning all the time; return the log and the most bytes it ever had.

    The first `keep` items have a priority that a min-heap remover spares for ever.
    """
    log = open_log(folder, SEGMENT_BYTES, max_memory_bytes=500)
    log.replay.create_table(config)
    session = open_streams(log.replay)
    most = 0
    for number in range(chunks):
        priority = 1e6 if number < keep else 1.0 + number
        append(
            log.replay,
            session,
            [make_chunk(0, 0, 4 * number, 4)],
            [make_items(0, [(0, 3, 4)], [priority], [number.to_bytes(4, "little")] if config.payload_bytes else ())],
        )
        log.compact()
        most = max(most, log.journal.size_bytes)
    return log, most


def test_segments_of_a_full_queue_are_deleted_with_their_last_item(tmp_path: Path) -> None:
    """A table that turned over ten times takes as much disk as one turn, except for a few segments."""
    log, most = filled(tmp_path, make_config(max_items=50, max_item_steps=4), 500)
    assert most <= most_bytes(log)
    assert log.journal.segment > 10 * len(log.files)
    assert sum(path.stat().st_size for path in (*log.files, *log.copies)) == log.journal.size_bytes
    log.crash()


@pytest.mark.parametrize("max_items", [20, 60])
def test_long_lived_items_are_kept_without_keeping_everything_since(tmp_path: Path, max_items: int) -> None:
    """Items that no eviction takes are moved to the new end, and come back after a restart with their payloads."""
    config = make_config(max_items=max_items, max_item_steps=4, remover=LOWEST_FIRST, sampler=FIFO, payload_bytes=4)
    log, most = filled(tmp_path, config, 600, keep=7)
    assert most <= most_bytes(log)
    for opened in (log, open_log_again(log)):
        table = opened.replay.find("t")
        sample = sample_all(opened, table)
        found = dict(zip(steps_of(sample), sample.payloads, strict=True))
        for number in range(7):
            steps = (0, *range(4 * number, 4 * number + 4))
            assert found[steps] == number.to_bytes(4, "little")
        assert table.size == max_items
    opened.crash()


def test_chunks_that_leave_while_a_full_queue_is_waited_for_are_not_freed_twice(tmp_path: Path) -> None:
    """Their slots are others' by then: every item keeps its own steps, and no two chunks get one slot."""
    log = open_log(tmp_path, SEGMENT_BYTES, max_memory_bytes=500)
    log.replay.create_table(make_config(max_items=20, max_item_steps=4, remover=LOWEST_FIRST, sampler=FIFO))
    table, session = log.replay.find("t"), open_streams(log.replay)

    def add(number: int) -> None:
        items = make_items(0, [(0, 3, 4)], [1e6 - number if number < 7 else 1.0 + number])
        append(log.replay, session, [make_chunk(0, 0, 4 * number, 4)], [items])

    for number in range(290):
        add(number)
    coming = iter(range(290, 296))

    class Full(AtOnce):
        async def room(self) -> None:
            """Drop a chunk that is about to be moved; two others come, the first three times."""
            about = chunks_in(table.store, log.recovered.folder.segments()[0]).tolist()
            for slot, number in zip(about[:1], coming, strict=False):
                log.replay.drop_chunks(table.store, np.array([slot]))
                add(number)
                add(next(coming))

    log.compact(Full())
    assert next(coming, None) is None
    assert len(table.store.held()) == table.store.count == len(set(table.store.held().tolist()))
    for opened in (log, open_log_again(log)):
        found = steps_of(sample_all(opened, opened.replay.find("t")))
        assert len(set(found)) == len(found) == opened.replay.find("t").size
        assert all(steps == (0, *range(steps[1], steps[1] + 4)) and steps[1] % 4 == 0 for steps in found)
    opened.crash()


def test_a_log_of_little_but_segment_heads_is_written_again_once(tmp_path: Path) -> None:
    """Where a segment's head alone fills it, no moving makes the log small: each call moves what is there and ends."""
    log = open_log(tmp_path, segment_bytes=64)
    log.replay.create_table(make_config(max_items=50, max_item_steps=4))
    session = open_streams(log.replay)
    for number in range(5):
        append(log.replay, session, [make_chunk(0, 0, 4 * number, 4)], [make_items(0, [(0, 3, 4)])])
    segments = log.journal.segment
    log.compact()
    assert log.journal.segment <= 3 * segments
    assert log.replay.find("t").size == 5
    again = open_log_again(log)
    assert again.replay.find("t").size == 5
    again.crash()


def test_log_whose_payloads_outweigh_its_chunks_is_not_written_again(tmp_path: Path) -> None:
    """Payloads are needed bytes: a log without anything superfluous is left as it is."""
    log = open_log(tmp_path, SEGMENT_BYTES)
    log.replay.create_table(make_config(max_items=50, max_item_steps=4, payload_bytes=1000))
    session = open_streams(log.replay)
    for number in range(30):
        items = make_items(0, [(0, 3, 4)], payloads=[bytes(1000)])
        append(log.replay, session, [make_chunk(0, 0, 4 * number, 4)], [items])
    before = log.files
    assert len(before) > 8
    log.compact()
    assert log.files == before
    log.crash()


def test_corrupt_chunk_that_a_call_holds_does_not_keep_its_segment(tmp_path: Path) -> None:
    """Its items are dropped once, the segment goes, and whoever reads the chunk still finds it corrupt."""
    log = open_log(tmp_path, segment_bytes=64, max_memory_bytes=500)
    log.replay.create_table(make_config(max_items=50, max_item_steps=4))
    table, session = log.replay.find("t"), open_streams(log.replay)
    for number in range(20):
        append(log.replay, session, [make_chunk(0, 0, 4 * number, 4)], [make_items(0, [(0, 3, 4)])])
    held, before = table.store.held()[:1], log.files
    where = logged(table.store).locations(held)
    path = log.recovered.folder.segment(int(where.segments[0]))
    flip(path, int(where.offsets[0]) + 7)
    table.store.acquire(held)
    moves = iter(range(100))

    class Bounded(AtOnce):
        async def room(self) -> None:
            """Fail if the log is written again without an end."""
            next(moves)

    log.compact(Bounded())
    assert not set(before) & set(log.files)
    assert (log.replay.corrupt_chunks, table.size) == (1, 19)
    cold = BlobReader(BlobFiles(log.recovered.folder))
    assert asyncio.run(cold.blobs(logged(table.store), held))[1].tolist() == held.tolist()
    cold.close()
    table.store.release(held)
    log.crash()


def test_chunks_whose_new_place_the_disk_lost_are_read_at_the_old_one(tmp_path: Path) -> None:
    """A power cut while a segment is moved costs nothing that was synced before: the old segment is still there."""
    log = open_log(tmp_path)
    log.replay.create_table(make_config(max_items=50, max_item_steps=4))
    store, session = log.replay.find("t").store, open_streams(log.replay)
    for number in range(4):
        append(log.replay, session, [make_chunk(0, 0, 4 * number, 4)], [make_items(0, [(0, 3, 4)])])
    slots = store.held()
    moved = NewChunks(store, slots, logged(store).blobs(slots))
    where = log.journal.log_moved(log.replay.env_steps, moved)
    append(log.replay, session, [make_chunk(0, 0, 16, 4)], [make_items(0, [(0, 3, 4)])])
    flip(log.files[0], *(where.offsets[1:3] + 10).tolist())
    again = open_log_again(log)
    steps = sorted(steps_of(sample_all(again, again.replay.find("t"))))
    assert steps == [(0, *range(first, first + 4)) for first in range(0, 20, 4)]
    again.crash()


def test_segment_that_cannot_be_read_just_now_keeps_its_chunks(tmp_path: Path) -> None:
    """No descriptor is left: nothing is dropped or deleted, and the next attempt moves what is there."""
    log = open_log(tmp_path, segment_bytes=64, max_memory_bytes=500)
    log.replay.create_table(make_config(max_items=50, max_item_steps=4))
    session = open_streams(log.replay)
    for number in range(20):
        append(log.replay, session, [make_chunk(0, 0, 4 * number, 4)], [make_items(0, [(0, 3, 4)])])
    before, garbage = log.files, Garbage(log.replay, log.journal, 64)
    needed = {number for number in log.recovered.folder.segments() if garbage.is_needed(number)}
    with unreadable(errno.EMFILE), pytest.raises(Unavailable):
        log.compact()
    assert needed <= set(log.recovered.folder.segments())
    assert log.replay.find("t").size == 20
    log.compact()
    assert not set(before) & set(log.files)
    assert sorted(steps_of(sample_all(log, log.replay.find("t")))) == [(0, *range(4 * n, 4 * n + 4)) for n in range(20)]
    log.crash()


def test_whether_a_segment_is_needed_is_known_without_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compactor asks every half second, whatever the size of the tables."""
    log, _ = filled(tmp_path, make_config(max_items=50, max_item_steps=4), 100)
    garbage, items = Garbage(log.replay, log.journal, SEGMENT_BYTES), log.replay.find("t").items
    needed = set(items.segments[items.held()].tolist())

    def search(_: object) -> NoReturn:
        raise AssertionError("a search of the whole table")

    with monkeypatch.context() as patch:
        patch.setattr(ChunkStore, "held", search)
        patch.setattr(Items, "held", search)
        assert {number for number in log.recovered.folder.segments() if garbage.is_needed(number)} == needed
    log.replay.reset(log.replay.find("t"))
    for epoch in log.replay.streams.epochs:
        epoch.close()
    assert not any(garbage.is_needed(number) for number in log.recovered.folder.segments())
    log.crash()


async def test_server_continues_after_a_compaction_that_could_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is tried."""
    attempts = asyncio.Queue[None]()

    async def fail(_: Compactor) -> None:
        attempts.put_nowait(None)
        raise Unavailable("the replay log could not be read: Too many open files")

    monkeypatch.setattr("tidemill.services.replay.log.log._COMPACT_EVERY_S", 0)
    monkeypatch.setattr(Compactor, "compact", fail)
    opened = open_log(tmp_path)
    log = ReplayLog(opened.recovered, StorageSettings(folder=str(tmp_path)), lambda: None)
    async with asyncio.timeout(10):
        for _ in range(2):
            await attempts.get()
    assert not log.failed.done()
    await log.close()


def most_bytes(log: Log) -> int:
    """Return the limit of a full table's log: twice what is needed, two segments, and the two at its ends."""
    return 2 * Garbage(log.replay, log.journal, SEGMENT_BYTES).live_bytes + 4 * SEGMENT_BYTES


def open_log_again(log: Log) -> Log:
    """Kill the server of a log and start it again."""
    log.crash()
    again = open_log(log.recovered.folder.path, SEGMENT_BYTES, max_memory_bytes=500)
    assert not again.recovered.corruption.is_any
    assert again.recovered.dropped == 0
    return again
