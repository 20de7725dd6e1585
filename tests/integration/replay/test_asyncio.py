"""Writing and reading in an event loop, which continues to run."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import suppress
from typing import Any

import pytest

from tests.support.naming import naming
from tests.support.numbered_steps import numbered_step, steps_table
from tests.support.replay_service import LocalServer
from tests.support.waiting import WAIT_S
from tidemill.errors import FailedPrecondition, Unavailable
from tidemill.replay import ItemWindow, RateLimiterConfig, ReplayDataset, ReplayWriter, Server
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableDescription
from tidemill.replay.writing import writer as writer_module

_QUEUE = steps_table(rate_limiter=RateLimiterConfig(queue_size=2))


async def _is_blocked(task: asyncio.Task[object]) -> bool:
    """True if a task still waits after the loop went round some times."""
    for _ in range(50):
        await asyncio.sleep(0.001)
    return not task.done()


async def test_writer_and_reader_of_a_queue_take_turns(server: LocalServer) -> None:
    """A queue of two items holds the writer back, in one loop with the reader: every step comes through, in order."""
    with (
        ReplayWriter(server.address, _QUEUE, windows=ItemWindow(1), chunk_length=1, max_in_flight_chunks=1) as writer,
        ReplayDataset(server.address, _QUEUE, 1, timeout_s=WAIT_S, prefetch=1) as dataset,
    ):

        async def write() -> None:
            for number in range(20):
                await writer.append_async(numbered_step(number), timeout_s=WAIT_S)
            await writer.flush_async(WAIT_S)

        writing = asyncio.create_task(write())
        assert [int((await anext(dataset))["number"][0, -1]) for _ in range(20)] == list(range(20))
        await writing
        assert writer.blocked_s > 0


async def test_tasks_share_a_writer(server: LocalServer) -> None:
    """Two tasks append and flush while a queue holds them back: each step comes once, and no padding of a chunk."""
    with (
        ReplayWriter(server.address, _QUEUE, windows=ItemWindow(2), chunk_length=2, max_in_flight_chunks=1) as writer,
        ReplayDataset(server.address, _QUEUE, 1, timeout_s=WAIT_S, prefetch=1) as dataset,
    ):

        async def write(numbers: range) -> None:
            for number in numbers:
                await writer.append_async(numbered_step(number), timeout_s=WAIT_S)
                await writer.flush_async(WAIT_S)

        async with asyncio.TaskGroup() as tasks:
            for start in (1, 2):
                tasks.create_task(write(range(start, 21, 2)))
            windows = [(await anext(dataset))["number"][0] for _ in range(19)]
        steps = [int(windows[0][0]), *(int(window[-1]) for window in windows)]
        assert [int(window[0]) for window in windows] == steps[:-1]
        assert sorted(steps) == list(range(1, 21))


async def test_flush_does_not_wait_for_what_others_append(server: LocalServer) -> None:
    """A task that flushes while another one fills each place of a full queue at once returns all the same."""
    with (
        ReplayWriter(
            server.address, _QUEUE, num_envs=2, windows=ItemWindow(1), chunk_length=1, max_in_flight_chunks=8
        ) as writer,
        ReplayDataset(server.address, _QUEUE, 1, timeout_s=WAIT_S, prefetch=1) as dataset,
    ):

        async def write() -> None:
            for number in itertools.count():
                await writer.append_async(numbered_step(number), env=1)

        async def read() -> None:  # so slowly that something always waits for an acknowledgement
            while True:
                while writer.unacknowledged_chunks < 15:
                    await asyncio.sleep(0)
                await anext(dataset)

        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(write()), tasks.create_task(read())]
            while writer.unacknowledged_chunks < 16:
                await asyncio.sleep(0)
            for number in range(3):
                await writer.append_async(numbered_step(number), env=0)
                await writer.flush_async(WAIT_S)
                assert writer.unacknowledged_chunks
            for other in others:
                other.cancel()
        dataset.close()
        with ReplayDataset(server.address, _QUEUE, 1) as rest:  # lets the end of the block flush
            emptying = asyncio.create_task(_batches(rest))
            await writer.flush_async(WAIT_S)
            emptying.cancel()


async def test_turn_comes_without_the_rest_of_a_pause(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many tasks that wait for room wakes the next one when it has appended."""
    with (
        ReplayWriter(
            server.address, _QUEUE, num_envs=16, windows=ItemWindow(1), chunk_length=1, max_in_flight_chunks=1
        ) as writer,
        ReplayDataset(server.address, _QUEUE, 1) as dataset,
    ):
        for env in range(16):
            writer.append(numbered_step(0), env=env)
        with suppress(Unavailable):
            for number in itertools.count(1):
                writer.append(numbered_step(number), env=0, timeout_s=0.5)
        with monkeypatch.context() as patched:
            patched.setattr(writer_module, "_LINE_S", 3600.0)
            tasks = [asyncio.create_task(writer.append_async(numbered_step(0), env=env)) for env in range(16)]
            assert await _is_blocked(tasks[0])
            emptying = asyncio.create_task(_batches(dataset))
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(*tasks)
        await writer.flush_async(WAIT_S)
        emptying.cancel()


async def test_flush_without_a_timeout_waits_for_the_server(server: LocalServer) -> None:
    """With None, until it has everything or the writer is closed; another type is refused before anything is sent."""
    with ReplayWriter(server.address, _QUEUE, windows=ItemWindow(1), chunk_length=1) as writer:
        writer.append(numbered_step(0))
        soon: Any = "soon"
        with pytest.raises(TypeError, match=naming("timeout_s")):
            writer.flush(soon)
        with pytest.raises(TypeError, match=naming("timeout_s")):
            await writer.flush_async(soon)
        assert not writer.unacknowledged_chunks
        writer.flush(timeout_s=None)
        writer.append(numbered_step(1))
        await writer.flush_async(timeout_s=None)
        assert not writer.unacknowledged_chunks
        for number in range(2, 6):
            writer.append(numbered_step(number))
        flushing = asyncio.create_task(writer.flush_async(timeout_s=None))
        assert await _is_blocked(flushing)
        writer.close()
        with pytest.raises(FailedPrecondition, match=naming("closed")):
            await flushing


async def test_cancelled_calls_take_nothing(server: LocalServer) -> None:
    """Neither a step nor a batch: both wait where they are for the next call."""
    with (
        ReplayWriter(server.address, _QUEUE, windows=ItemWindow(1), chunk_length=1, max_in_flight_chunks=1) as writer,
        ReplayDataset(server.address, _QUEUE, 1, timeout_s=WAIT_S, prefetch=1) as dataset,
    ):
        reading = asyncio.ensure_future(anext(dataset))
        assert await _is_blocked(reading)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        appended: list[int] = []

        async def append_all() -> None:
            for number in range(10):
                await writer.append_async(numbered_step(number), timeout_s=1.0)
                appended.append(number)

        with pytest.raises(Unavailable, match=naming("1 1")):
            await append_all()
        appending = asyncio.ensure_future(writer.append_async(numbered_step(99)))
        assert await _is_blocked(appending)
        appending.cancel()
        with suppress(asyncio.CancelledError):
            await appending
        read = [int((await anext(dataset))["number"][0, -1]) for _ in appended[1:]]
        await writer.flush_async(WAIT_S)
        assert [*read, int((await anext(dataset))["number"][0, -1])] == appended
    with (
        ReplayDataset(server.address, _QUEUE, 1, timeout_s=0.05) as dataset,
        pytest.raises(Unavailable, match=naming("table 't' 0.05")),
    ):
        await anext(dataset)


@pytest.mark.usefixtures("patient_questions")
async def test_cause_of_a_timeout_is_asked_beside_the_loop(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may take half a second to answer, in which other tasks run."""
    threads = list[threading.Thread]()
    describe = ReplayClient.describe_table

    def described(client: ReplayClient, name: str) -> TableDescription:
        threads.append(threading.current_thread())
        return describe(client, name)

    for end_on_timeout, error in ((False, Unavailable), (True, StopAsyncIteration)):
        with (
            ReplayDataset(
                server.address, _QUEUE, 1, create=True, timeout_s=0.01, end_on_timeout=end_on_timeout
            ) as dataset,
            monkeypatch.context() as patch,
        ):
            patch.setattr(ReplayClient, "describe_table", described)
            with pytest.raises(error):
                await anext(dataset)
    assert threads
    assert threading.main_thread() not in threads


async def test_batches_of_a_dataset_that_is_closed_end(server: LocalServer) -> None:
    """`async for` ends, whatever else waits for the dataset; so does a thread that was waiting in `next`."""
    dataset = ReplayDataset(server.address, steps_table(), 1, create=True)
    in_thread = asyncio.create_task(asyncio.to_thread(next, dataset))
    iterating = asyncio.create_task(_batches(dataset))
    assert await _is_blocked(iterating)
    dataset.close()
    async with asyncio.timeout(30.0):
        assert await iterating == 0
        assert await in_thread is None
        assert await asyncio.to_thread(next, dataset) is None
        assert await asyncio.to_thread(next, dataset, "over") == "over"
    with pytest.raises(StopIteration, match="closed"):
        next(dataset)


async def _batches(dataset: ReplayDataset) -> int:
    return len([batch async for batch in dataset])


async def test_ready_batches_leave_the_loop_to_others() -> None:
    """A loop over batches that are always there does not keep another task from running."""
    table = steps_table(max_times_sampled=0)
    with Server() as server:
        with ReplayWriter(server.address, table, windows=ItemWindow(1)) as writer:
            await writer.append_async(numbered_step(0))
            await writer.flush_async(WAIT_S)
        with ReplayDataset(server.address, table, 1, timeout_s=WAIT_S) as dataset:
            turns, done = 0, asyncio.Event()

            async def count() -> None:
                nonlocal turns
                while not done.is_set():
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            for _ in range(10):
                await anext(dataset)
            done.set()
            await counting
            assert turns >= 10


async def test_smaller_batch_is_not_taken_at_once_without_a_time_limit(server: LocalServer) -> None:
    """It is what is there when no whole one came in time, and there is as much time as it takes."""
    table = steps_table(max_item_steps=1)
    with (
        ReplayWriter(server.address, table, windows=ItemWindow(1), chunk_length=1) as writer,
        ReplayDataset(server.address, table, 4, allow_smaller=True, prefetch=1) as dataset,
    ):
        for number in range(3):
            await writer.append_async(numbered_step(number), timeout_s=WAIT_S)
        await writer.flush_async(WAIT_S)
        reading = asyncio.ensure_future(anext(dataset))
        assert await _is_blocked(reading)
        await writer.append_async(numbered_step(3), timeout_s=WAIT_S)
        await writer.flush_async(WAIT_S)
        assert len((await asyncio.wait_for(reading, WAIT_S)).keys) == 4
