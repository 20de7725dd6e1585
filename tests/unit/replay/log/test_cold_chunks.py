"""A replay larger than its memory: what is not in memory is read from the log, and checked."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.damage import flip
from tests.support.naming import because, naming
from tests.support.replay_streams import append, make_chunk, make_config, make_items, open_streams, steps_of
from tests.unit.replay.logs import Log, open_log, unreadable
from tidemill.arrays import Ints
from tidemill.errors import DataLoss, FatalError, NotFound, Reason, Unavailable
from tidemill.replay.batch import SampledBatch
from tidemill.replay.table_config import RateLimiterConfig
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.batch_reader import BatchReader, BatchRoom
from tidemill.services.replay.log.blob_reader import BlobFiles, BlobReader
from tidemill.services.replay.log.logged_blocks import LoggedBlocks
from tidemill.services.replay.sample_queue import OpenedSample, SampleDemand
from tidemill.services.replay.state.memory import MemoryBudget

MEMORY_BYTES = 1000
CHUNKS = 40


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log with a stream of which memory holds a quarter at most."""
    opened = open_log(tmp_path, max_memory_bytes=MEMORY_BYTES)
    opened.replay.create_table(
        make_config(limiter=RateLimiterConfig(min_size=1, samples_per_insert=10.0, error_buffer=1e6), max_items=1000)
    )
    session = open_streams(opened.replay)
    for first in range(0, 4 * CHUNKS, 4):
        items = [(0, i, min(first + i + 1, 3)) for i in range(4)]
        append(opened.replay, session, [make_chunk(0, 0, first, 4)], [make_items(0, items)])
    yield opened
    opened.crash()


def read(log: Log, count: int, distinct: bool, counted: int | None = None, seed: int | None = None) -> SampledBatch:
    """Draw a batch as the server does."""

    async def draw() -> SampledBatch:
        cold = BlobReader(BlobFiles(log.recovered.folder))
        try:
            batches = BatchReader(log.replay, AdmissionQueue(lambda: 0.0), cold)
            opened = OpenedSample(log.replay.find("t"), count, without_replacement=distinct)
            batch, _, _ = await batches.read(opened, SampleDemand(count, counted, seed=seed), room())
            return batch
        finally:
            cold.close()

    return asyncio.run(draw())


def room() -> BatchRoom:
    """Return room for the batches of one call."""
    return BatchRoom(MemoryBudget(0), lambda: None)


def blocks_of(log: Log) -> LoggedBlocks:
    """Return where the chunks of the table are."""
    blocks = log.replay.find("t").store.blocks
    assert isinstance(blocks, LoggedBlocks)
    return blocks


def cold_of(log: Log, slots: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the chunks that only the log has."""
    return np.array([blob is None for blob in blocks_of(log).peek(slots)])


def corrupt(log: Log, slot: int) -> None:
    """Flip a bit of a chunk on disk."""
    where = blocks_of(log).locations(np.array([slot]))
    flip(log.recovered.folder.segment(int(where.segments[0])), int(where.offsets[0]) + 7)


def test_memory_stays_within_its_budget_and_every_item_is_served(log: Log) -> None:
    """The oldest chunks leave memory; a batch of all items still has the right steps of each."""
    store = log.replay.find("t").store
    missing = cold_of(log, store.held())
    assert missing.sum() > CHUNKS / 2
    assert not missing[np.argmax(blocks_of(log).ids[store.held()])]
    assert log.recovered.budget.size_bytes <= MEMORY_BYTES
    sample = read(log, 4 * CHUNKS, distinct=True)
    wanted = [(0, *range(max(last - 2, 0), last + 1)) for last in range(4 * CHUNKS)]
    assert sorted(steps_of(sample)) == sorted(wanted)


def test_draw_from_a_dropped_table_whose_segments_are_gone_ends(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing counts as corrupt: draws by a seed from other tables would be refused."""
    blobs = BlobReader.blobs

    async def drop_first(reader: BlobReader, blocks: LoggedBlocks, slots: Ints) -> tuple[list[bytes | None], Ints]:
        log.replay.drop_table(log.replay.find("t"))
        for path in log.files:
            path.unlink()
        return await blobs(reader, blocks, slots)

    monkeypatch.setattr(BlobReader, "blobs", drop_first)
    with pytest.raises(NotFound, match=naming("table 't'"), check=because(Reason.UNKNOWN_TABLE)):
        read(log, 100, distinct=False)
    assert log.replay.corrupt_chunks == 0


def test_nothing_is_held_after_a_batch_was_read(log: Log) -> None:
    """Chunks are pinned while they are read, and free to go afterwards."""
    read(log, 50, distinct=False)
    assert log.replay.reset(log.replay.find("t")) == 4 * CHUNKS
    assert log.replay.chunks <= 2  # the stream's newest


def test_nothing_is_held_after_a_call_was_cancelled_at_any_moment(log: Log) -> None:
    """Before the draw, at the moment of the draw or while chunks are read: they are free to go afterwards."""

    async def cancelled_after(turns: int) -> None:
        cold = BlobReader(BlobFiles(log.recovered.folder))
        batches = BatchReader(log.replay, AdmissionQueue(lambda: 0.0), cold)
        opened = OpenedSample(log.replay.find("t"), 50)
        reading = asyncio.ensure_future(batches.read(opened, SampleDemand(50), room()))
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        cold.close()

    for turns in range(6):
        asyncio.run(cancelled_after(turns))
    log.replay.reset(log.replay.find("t"))
    assert log.replay.chunks <= 2


def test_draw_that_was_admitted_late_is_released_when_its_call_is_gone(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table lets a waiting call draw in the very turn in which it is cancelled: it was not sampled."""
    table = log.replay.find("t")
    came_back = table.came_back
    returned: list[int] = []

    def note(
        keys: NDArray[np.uint64], ages: NDArray[np.int64], eras: NDArray[np.int64], counted: int | None = None
    ) -> None:
        returned.append(len(keys))
        came_back(keys, ages, eras, counted)

    monkeypatch.setattr(table, "came_back", note)
    removed = log.replay.delete(table, table.items.keys(table.items.live()))
    assert removed == 4 * CHUNKS

    async def cancel_at_the_draw() -> None:
        admission, cold = AdmissionQueue(lambda: 0.0), BlobReader(BlobFiles(log.recovered.folder))
        reading = asyncio.ensure_future(
            BatchReader(log.replay, admission, cold).read(OpenedSample(table, 3), SampleDemand(3), room())
        )
        await asyncio.sleep(0)
        session = open_streams(log.replay, epoch=1)
        items = [(0, i, 1) for i in range(4)]
        append(log.replay, session, [make_chunk(0, 0, 4 * CHUNKS, 4)], [make_items(0, items)])
        admission.changed()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        cold.close()

    asyncio.run(cancel_at_the_draw())
    assert returned == [3]
    assert table.counters.samples == table.items.times_sampled.sum() == 0
    open_streams(log.replay)  # a new epoch lets go of the old one's newest chunks
    log.replay.reset(table)
    assert log.replay.chunks == 0


@pytest.mark.parametrize("distinct", [False, True])
def test_corrupt_cold_chunk_is_never_served(log: Log, distinct: bool) -> None:
    """Its items are dropped and counted, and the batch is completed with others."""
    table = log.replay.find("t")
    oldest = int(table.store.held()[np.argmin(blocks_of(log).ids[table.store.held()])])
    corrupt(log, oldest)
    corrupt(log, table.store.next_slot(oldest))
    diff = table.limiter.diff
    for _ in range(10):
        sample = read(log, 100, distinct)
        assert len(sample.keys) == 100
        assert all(min(steps) >= 8 for _, *steps in steps_of(sample))
        if distinct:
            assert len(set(sample.keys.tolist())) == 100
    assert table.counters.corrupt_items == 10  # steps 0 .. 7, and the two that reach back to 6 and 7
    assert table.size == 4 * CHUNKS - 10
    assert table.limiter.diff == diff - 1000


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_cold_chunk_that_cannot_be_read_just_now_is_kept(log: Log, code: int) -> None:
    """No descriptor is left, or the disk failed: the draw is refused, nothing is dropped, and the next draw has all."""
    table = log.replay.find("t")
    diff = table.limiter.diff
    with unreadable(code), pytest.raises(Unavailable, match=naming("log")):
        read(log, 4 * CHUNKS, distinct=True)
    assert (table.size, table.counters.corrupt_items, table.limiter.diff) == (4 * CHUNKS, 0, diff)
    assert len(read(log, 4 * CHUNKS, distinct=True).keys) == 4 * CHUNKS


def test_segment_whose_handle_became_stale_is_opened_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a network's file system has it when its server was restarted."""
    pread, codes = os.pread, iter([errno.ESTALE])

    def once(*arguments: int) -> bytes:
        if code := next(codes, 0):
            raise OSError(code, os.strerror(code))
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", once)
    assert len(read(log, 4 * CHUNKS, distinct=True).keys) == 4 * CHUNKS
    assert next(codes, None) is None


def test_folder_whose_disk_was_unmounted_proves_nothing_of_its_chunks(log: Log) -> None:
    """Nothing is dropped, and the draws after it is back find every item."""
    folder, size = log.recovered.folder.path, log.replay.find("t").size
    folder.rename(folder.with_name("elsewhere"))
    for _ in ("no folder", "an empty one"):
        with pytest.raises(Unavailable, match=naming("the replay log could not be read")):
            read(log, size, distinct=True)
        folder.mkdir(exist_ok=True)
    folder.rmdir()
    folder.with_name("elsewhere").rename(folder)
    assert len(read(log, size, distinct=True).keys) == size


def test_restart_that_cannot_read_a_chunk_ends_and_drops_nothing(log: Log) -> None:
    """The next start has everything."""
    log.crash()
    with unreadable(errno.EMFILE), pytest.raises(FatalError, match=naming("restore")):
        open_log(log.recovered.folder.path, max_memory_bytes=MEMORY_BYTES)
    log.recovered = open_log(log.recovered.folder.path, max_memory_bytes=MEMORY_BYTES).recovered
    assert log.replay.find("t").size == 4 * CHUNKS


def test_draw_with_a_seed_is_refused_once_a_chunk_was_corrupt(log: Log) -> None:
    """Items that take the place of others would not come in another run; the next draw is refused as well."""
    table = log.replay.find("t")
    before = read(log, 400, False, seed=3)
    oldest = int(table.store.held()[np.argmin(blocks_of(log).ids[table.store.held()])])
    corrupt(log, oldest)
    assert any(step < 4 for _, *steps in steps_of(before) for step in steps), "the seed must draw the corrupt chunk"
    for _ in range(2):
        with pytest.raises(DataLoss, match=naming("table 't' 6")):
            read(log, 400, False, seed=3)
    assert len(read(log, 400, False).keys) == 400


def test_draw_that_its_caller_accounts_for_is_read_as_well(log: Log) -> None:
    """What is counted is what the caller said."""
    diff = log.replay.find("t").limiter.diff
    assert len(read(log, 30, distinct=False, counted=7).keys) == 30
    assert log.replay.find("t").limiter.diff == diff - 7


def test_restart_fills_memory_with_the_newest_chunks(log: Log) -> None:
    """After a restart the budget holds again, and the rest is cold."""
    log.crash()
    again = open_log(log.recovered.folder.path, max_memory_bytes=MEMORY_BYTES)
    held = again.replay.find("t").store.held()
    blocks = blocks_of(again)
    warm = held[~cold_of(again, held)]
    assert 0 < again.recovered.budget.size_bytes <= MEMORY_BYTES
    assert blocks.ids[warm].min() > blocks.ids[held[cold_of(again, held)]].max()
    log.recovered = again.recovered
