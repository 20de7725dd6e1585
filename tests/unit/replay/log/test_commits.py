"""Who waits for the log's writer, and until when."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from tests.support.replay_streams import make_config, make_replay
from tidemill.replay.batch import StoredSteps
from tidemill.services.replay.log.commits import Commits, acknowledge_in_order
from tidemill.services.replay.log.writer import BOUNDS_S, FsyncLatency, Progress
from tidemill.services.replay.state.memory import MemoryBudget


async def started(waiting: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
    """Run a coroutine until it waits."""
    task = asyncio.ensure_future(waiting)
    for _ in range(3):
        await asyncio.sleep(0)
    return task


async def test_append_is_durable_once_written() -> None:
    """Waiters are let go in order of their records, not of their arrival."""
    commits = Commits(wait_for_sync=False, max_pending_bytes=100)
    second, first = await started(commits.durable(2)), await started(commits.durable(1))
    commits.progressed(Progress(written=1))
    await asyncio.wait_for(first, 60)
    assert not second.done()
    commits.progressed(Progress(written=2))
    await asyncio.wait_for(second, 60)
    await commits.durable(2)


async def test_wait_of_a_snapshot_ends_when_the_disk_is_full() -> None:
    """A snapshot is refused rather than late; appends still wait, and are let go once there is room."""
    commits = Commits(wait_for_sync=False, max_pending_bytes=100)
    durable, kept = await started(commits.durable(1)), await started(commits.kept(1))
    commits.progressed(Progress(full=True))
    for refused in (kept, commits.kept(1)):
        with pytest.raises(OSError, match="No space left"):
            await asyncio.wait_for(refused, 60)
    assert not durable.done()
    commits.progressed(Progress(written=1))
    await asyncio.wait_for(durable, 60)
    await commits.kept(1)


async def test_snapshot_learns_what_is_synced_and_that_the_writer_has_ended() -> None:
    """What is written may be named; the wait for more ends at once, whether it began before or after the end."""
    commits = Commits(wait_for_sync=False, max_pending_bytes=100)
    commits.progressed(Progress(written=2, synced=1))
    waiting = await started(commits.kept(3))
    commits.end(OSError("gone"))
    for refused in (waiting, commits.kept(3)):
        with pytest.raises(OSError, match="gone"):
            await asyncio.wait_for(refused, 60)
    assert await commits.kept(2) == 1


async def test_append_waits_for_the_disk_when_asked_to() -> None:
    """With acknowledgement after fsync, written is not enough; the cleaner's wait still is for written."""
    commits = Commits(wait_for_sync=True, max_pending_bytes=100)
    durable, written = await started(commits.durable(1)), await started(commits.written(1))
    commits.progressed(Progress(written=1))
    await asyncio.wait_for(written, 60)
    assert not durable.done()
    commits.progressed(Progress(written=1, synced=1))
    await asyncio.wait_for(durable, 60)


async def test_room_is_given_as_records_are_written() -> None:
    """Beyond its bytes the queue lets nobody in until the writer has caught up."""
    commits = Commits(wait_for_sync=False, max_pending_bytes=100)
    commits.submitted(1, 60)
    await commits.room()
    commits.submitted(2, 60)
    waiting = await started(commits.room())
    assert not waiting.done()
    assert commits.pending_bytes == 120
    commits.progressed(Progress(written=1))
    await asyncio.wait_for(waiting, 60)
    assert commits.pending_bytes == 60


def _steps(count: int) -> StoredSteps:
    return StoredSteps(1, count)


async def test_decisions_count_once_their_record_is_durable() -> None:
    """What a kill could take back is not reported."""
    t, u = make_replay(make_config("t"), make_config("u")).tables
    commits = Commits(wait_for_sync=False, max_pending_bytes=100, env_steps={t: _steps(7)})
    commits.stored(3, {t: _steps(20), u: _steps(13)})
    commits.stored(4, {t: _steps(0)})
    assert commits.env_steps == {t: _steps(7)}
    commits.progressed(Progress(written=3))
    assert commits.env_steps == {t: _steps(20), u: _steps(13)}
    commits.progressed(Progress(written=4))
    assert commits.env_steps == {t: _steps(0), u: _steps(13)}


async def test_decisions_of_a_dropped_table_are_forgotten() -> None:
    """However many tables a server creates and drops, also under one name, it holds the counts of those it has."""
    replay = make_replay()
    commits = Commits(wait_for_sync=False, max_pending_bytes=100)
    for sequence in range(1, 4):
        replay.create_table(make_config("t"))
        table = replay.find("t")
        assert table not in commits.env_steps
        commits.stored(sequence, {table: _steps(sequence)})
        commits.progressed(Progress(written=sequence))
        assert commits.env_steps == {table: _steps(sequence)}
        replay.drop_table(table)
        del table
        gc.collect()
    assert not commits.env_steps


async def test_cancelled_waiter_does_not_disturb_the_others() -> None:
    """A call that ended while it waited is passed over."""
    commits = Commits(wait_for_sync=False, max_pending_bytes=100)
    gone, stays = await started(commits.durable(1)), await started(commits.durable(1))
    gone.cancel()
    await asyncio.sleep(0)
    commits.progressed(Progress(written=1))
    await asyncio.wait_for(stays, 60)


async def test_messages_are_stored_on_while_answers_wait_for_the_disk() -> None:
    """Storing runs ahead of the answers; an error comes after the answers before it."""
    commits = Commits(wait_for_sync=False, max_pending_bytes=100)
    stored = []

    async def store() -> AsyncIterator[tuple[int, str]]:
        for sequence in (1, 2, 3):
            stored.append(sequence)
            yield sequence, f"answer {sequence}"
        raise ValueError("the fourth is malformed")

    answers = acknowledge_in_order(store(), commits.durable)
    first = await started(anext(answers))  # type: ignore[arg-type]
    for _ in range(10):
        await asyncio.sleep(0)
    assert stored == [1, 2, 3]
    assert not first.done()
    commits.progressed(Progress(written=3))
    assert await asyncio.wait_for(first, 60) == "answer 1"
    assert [await anext(answers), await anext(answers)] == ["answer 2", "answer 3"]
    with pytest.raises(ValueError, match="fourth"):
        await anext(answers)


def test_latency_counts_each_duration_in_its_bucket() -> None:
    """A bound belongs to its bucket, what exceeds all goes into the last, and the sum is kept."""
    latency = FsyncLatency()
    for seconds in (0.0001, BOUNDS_S[0], 0.0007, 99.0):
        latency.observe(seconds)
    assert (latency.counts[0], latency.counts[1], latency.counts[-1], sum(latency.counts)) == (2, 1, 1, 4)
    assert latency.sum_s == pytest.approx(99.0013)


class Blobs:
    """Blobs of ten bytes, by slot."""

    def __init__(self) -> None:
        self.warm: dict[int, int] = {}

    def is_resident(self, slot: int, chunk_id: int) -> bool:
        """True if the slot still has that chunk."""
        return self.warm.get(slot) == chunk_id

    def evict(self, slot: int) -> int:
        """Forget a blob."""
        del self.warm[slot]
        return 10


def test_memory_is_freed_oldest_first_and_only_what_the_log_has() -> None:
    """A blob that is not written yet stays, whatever the limit; a freed or reused slot is passed over."""
    budget, blobs = MemoryBudget(25), Blobs()
    for chunk in range(1, 6):
        blobs.warm[chunk] = chunk
        budget.came(10)
        budget.mark_evictable(blobs, [chunk], [chunk], sequence=chunk)
    assert budget.size_bytes == 50
    del blobs.warm[1]
    budget.left(10)
    blobs.warm[2] = 99  # another chunk's by now
    budget.written(4)
    assert (sorted(blobs.warm), budget.size_bytes) == ([2, 5], 20)
    assert budget.room_bytes == 5


class WatchedBlobs(Blobs):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def is_resident(self, slot: int, chunk_id: int) -> bool:
        """True if the slot still has that chunk."""
        self.asked += 1
        return super().is_resident(slot, chunk_id)


def test_memory_budget_looks_at_a_few_entries_for_each_new_one() -> None:
    """However many blobs are in memory: one that comes does not wait until all the others were looked at."""
    budget, blobs, most = MemoryBudget(10**9), WatchedBlobs(), 0
    for chunk in range(50_000):
        blobs.warm[chunk % 10_000] = chunk
        before = blobs.asked
        budget.mark_evictable(blobs, [chunk % 10_000], [chunk], sequence=chunk)
        most = max(most, blobs.asked - before)
    assert 0 < most < 10


def test_memory_is_freed_oldest_first_while_entries_are_swept() -> None:
    """Those that a sweep has kept are the oldest."""
    budget, blobs = MemoryBudget(10**6), WatchedBlobs()
    for chunk in range(4500):
        blobs.warm[chunk] = chunk
        budget.came(10)
        budget.mark_evictable(blobs, [chunk], [chunk], sequence=chunk)
    assert 0 < blobs.asked < 4000  # under way
    budget.stored_limit = 20_000
    budget.written(4500)
    assert sorted(blobs.warm) == list(range(2500, 4500))


def test_memory_budget_forgets_what_was_freed() -> None:
    """Chunks that come and go for ever do not leave entries behind."""
    budget, blobs = MemoryBudget(10**9), Blobs()
    for chunk in range(50_000):
        blobs.warm = {0: chunk}
        budget.mark_evictable(blobs, [0], [chunk], sequence=chunk)
    assert len(budget._queue) <= 4097
