"""ReplayWriter and ReplayDataset when servers die or freeze, and when their process forks."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.numbered_steps import STEP, numbered_step, steps_table
from tests.support.replay_service import LocalServer, server_process
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import DataLoss, FailedPrecondition, Unavailable
from tidemill.params.client import ParamsClient
from tidemill.params.watcher import ParamsWatcher
from tidemill.replay import (
    ItemWindow,
    ReplayClient,
    ReplayDataset,
    ReplaySampler,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    ShardDirectory,
    reconnecting_call,
)
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.sampling import sample_stream
from tidemill.replay.writing import writer as writer_module
from tidemill.replay.writing.appender import StreamAppender
from tidemill.rpc import options


def test_killed_server_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """SIGKILL between two flushes: after its restart both halves are there, once, and the same writer continues."""
    table = steps_table(max_times_sampled=0)
    options = ("--folder", str(tmp_path))
    with server_process("127.0.0.1:0", *options) as first:
        address = first.address
        writer = ReplayWriter(address, table, windows=ItemWindow(1), chunk_length=4)
        for number in range(10):
            writer.append(numbered_step(number))
        writer.flush(WAIT_S)
        os.kill(first.pid, signal.SIGKILL)
        first.process.wait(WAIT_S)
        for number in range(10, 20):
            writer.append(numbered_step(number))
    with server_process(address, *options), writer:
        writer.flush(WAIT_S)
        assert (writer.restarts, writer.dropped_chunks, writer.dropped_items) == (0, 0, 0)
        with ReplayDataset(address, table, 20, timeout_s=WAIT_S, without_replacement=True) as dataset:
            assert sorted(next(dataset)["number"][:, -1].tolist()) == list(range(20))


def test_client_of_a_writer_that_closes_as_it_connects_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that makes tables is opened in the thread that connects, while another one closes the writer."""
    stop, opening, stopping, closing = (threading.Event() for _ in range(4))
    opened: list[ReplayClient] = []
    closed: list[ReplayClient] = []

    class Client(ReplayClient):
        def __init__(self, address: str) -> None:
            opening.set()
            stopping.wait(WAIT_S)
            closing.wait(1.0)  # or `close` waits for this client
            super().__init__(address)
            opened.append(self)

        def close(self) -> None:
            super().close()
            closed.append(self)

    class Appender(StreamAppender):
        def stop(self) -> None:
            super().stop()
            stopping.set()

        def close(self) -> None:
            closing.set()
            super().close()

    monkeypatch.setattr(writer_module, "ReplayClient", Client)
    monkeypatch.setattr(writer_module, "StreamAppender", Appender)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(ReplayWriter, "127.0.0.1:1", steps_table(), stop=stop)
        assert opening.wait(WAIT_S)
        stop.set()
        with pytest.raises(Unavailable):
            made.result(WAIT_S)
    assert closed == opened


def test_priorities_wait_while_the_server_restarts(tmp_path: Path) -> None:
    """They are set once it is back, or refused when their time is over; those of lost items change nothing."""
    table = steps_table(max_times_sampled=0, sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0))
    options = ("--folder", str(tmp_path))
    with ExitStack() as stack:
        first = stack.enter_context(server_process("127.0.0.1:0", *options))
        with ReplayWriter(first.address, table, windows=ItemWindow(1)) as writer:
            writer.append(numbered_step(0))
        dataset = stack.enter_context(ReplayDataset(first.address, table, 1, timeout_s=WAIT_S, prefetch=1))
        threads = stack.enter_context(ThreadPoolExecutor())
        batch = next(dataset)
        os.kill(first.pid, signal.SIGKILL)
        first.process.wait(WAIT_S)
        with pytest.raises(Unavailable):
            dataset.update_priorities(batch, [5.0], timeout_s=0.3)
        waiting = threads.submit(dataset.update_priorities, batch, [5.0])
        time.sleep(0.3)
        assert not waiting.done()
        with server_process(first.address, *options), ReplayClient(first.address) as client:
            waiting.result(WAIT_S)
            assert client.describe_table("t").total_weight == 5.0
        with server_process(first.address):
            dataset.update_priorities(batch, [6.0])  # the reader makes the table again, without its items
        waiting = threads.submit(dataset.update_priorities, batch, [5.0])
        time.sleep(0.3)
        dataset.close()
        with pytest.raises(FailedPrecondition, match=naming("closed")):
            waiting.result(WAIT_S)


def test_server_that_kept_nothing_is_filled_again() -> None:
    """Without a folder the tables are gone with the server: the writer makes them again, and says what was dropped."""
    table = steps_table(max_times_sampled=0)
    with server_process() as first:
        address = first.address
        writer = ReplayWriter(address, table, chunk_length=4, max_in_flight_chunks=1)
        for number in range(6):
            writer.append(numbered_step(number))
        writer.flush(WAIT_S)
    with server_process(address), writer:
        for number in range(6, 30):
            writer.append(numbered_step(number))
            writer.create_item("t", last=4)
        with contextlib.suppress(DataLoss):  # a chunk may have been under way
            writer.flush(WAIT_S)
        assert writer.restarts == 1
        assert writer.dropped_items > 0
        with ReplayClient(address) as client:
            assert client.describe_table("t").items + writer.dropped_items >= 24 - 4 * writer.dropped_chunks
            assert client.describe_table("t").items > 0


def test_dropped_table_is_made_again_by_its_programs(server: LocalServer) -> None:
    """The writer's error names the drop among its causes; the reader continues with the new table's items."""
    table = steps_table(max_times_sampled=0, max_item_steps=1, sampler=SelectorConfig(SelectorKind.UNIFORM))
    with ReplayClient(server.address) as client, ReplayWriter(server.address, table, chunk_length=1) as writer:

        def write(number: int) -> None:
            writer.append(numbered_step(number))
            writer.create_item("t", last=1)
            writer.flush(WAIT_S)

        write(0)
        with ReplayDataset(server.address, "t", 1, timeout_s=WAIT_S, prefetch=1) as dataset:
            next(dataset)
            client.drop_table("t")
            with pytest.raises(DataLoss, match=naming("chunks table dropped")):
                write(1)
            assert client.describe_table("t").items == 0
            write(2)
            wait_until(lambda: next(dataset)["number"].item() == 2, "a batch of the new table")


def test_server_that_lost_acknowledged_steps_is_written_to_again(tmp_path: Path) -> None:
    """As by a power failure: the loss is said once, what comes after it is stored, and what was left is there once."""
    table = steps_table(max_times_sampled=0, sampler=SelectorConfig(SelectorKind.UNIFORM))
    data, earlier = tmp_path / "data", tmp_path / "earlier"
    options = ("--folder", str(data))
    numbers = iter(range(100))

    def write(writer: ReplayWriter, count: int) -> None:
        for _ in range(count):
            writer.append(numbered_step(next(numbers)))
        writer.flush(WAIT_S)

    with server_process("127.0.0.1:0", *options) as first:
        address = first.address
        writer = ReplayWriter(address, table, windows=ItemWindow(1), chunk_length=4)
        write(writer, 8)
        epoch = writer.epoch
    shutil.copytree(data, earlier)
    with server_process(address, *options):
        write(writer, 8)
    shutil.rmtree(data)
    earlier.rename(data)
    with server_process(address, *options), writer:
        with pytest.raises(DataLoss):
            write(writer, 8)
        write(writer, 8)
        assert (writer.restarts, writer.superseded_epoch) == (1, 0)
        assert writer.epoch > epoch
        with ReplayDataset(address, table, 1, timeout_s=WAIT_S, epochs=1) as dataset:
            stored = sorted(int(batch["number"][0, -1]) for batch in dataset)
    assert [number for number in stored if number < 16] == list(range(8))
    assert stored[-8:] == list(range(24, 32))
    assert len(set(stored)) == len(stored)


def test_close_waits_for_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is frozen with a call open, one that a client still waits for, and one that is gone.

    Whatever else would end the calls, or the wait for their threads, takes longer here than the test allows.
    """
    monkeypatch.setattr(options, "_KEEPALIVE", [("grpc.http2.ping_timeout_ms", int(2_000 * WAIT_S))])
    monkeypatch.setattr(sample_stream, "DEADLINE_S", 2 * WAIT_S)
    monkeypatch.setattr(reconnecting_call, "_JOIN_S", 2 * WAIT_S)
    with server_process() as server:
        table = steps_table()
        writer = ReplayWriter(server.address, table, chunk_length=1, max_in_flight_chunks=2)
        dataset = ReplayDataset(server.address, table, 1)
        waiting = threading.Thread(target=lambda: list(dataset), daemon=True)
        waiting.start()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for number in range(3):
                writer.append(numbered_step(number), timeout_s=1.0)
            with pytest.raises(Unavailable, match=naming("2 0.2")):
                writer.append(numbered_step(3), timeout_s=0.2)
            late = ReplayDataset(server.address, table, 1, create=True)
            for client in (writer, dataset, late):
                began_s = time.monotonic()
                client.close()
                assert time.monotonic() - began_s < WAIT_S
            waiting.join(WAIT_S)
            assert not waiting.is_alive()
        finally:
            os.kill(server.pid, signal.SIGCONT)


def _use_forked(calls: Sequence[Callable[[], object]], said: SimpleQueue[str]) -> None:
    for call in calls:
        try:
            call()
            said.put("no error")
        except FailedPrecondition as error:
            said.put(str(error))


def test_forked_child_is_told(server: LocalServer) -> None:
    """Every call says that it was made in another process; closing there does nothing, the parent's works on.

    So it is where other threads of the parent are in a call as it forks.
    """
    context = multiprocessing.get_context("fork")
    table = steps_table(max_times_sampled=0)
    with (
        ReplayWriter(server.address, table) as writer,
        ReplayDataset(server.address, table, 1, timeout_s=WAIT_S) as dataset,
        ReplaySampler([server.address], table, 1) as sampler,
        ReplayClient(server.address) as client,
        ParamsWatcher("unix:///nowhere") as watcher,
        ParamsClient("unix:///nowhere") as params,
        contextlib.closing(ShardDirectory(["dns:///nowhere:1"], 1, resolve=lambda _: [])) as directory,
        ThreadPoolExecutor() as threads,
        ExitStack() as stack,
    ):
        done, no_keys, watch = threading.Event(), np.zeros(0, np.uint64), params.watch()
        stack.callback(done.set)
        asking = [threads.submit(lambda: [client.list_tables() for _ in iter(done.is_set, True)]) for _ in range(2)]
        refused = (
            *(lambda: writer.append(STEP), lambda: writer.flush(1.0)),
            *(lambda: next(dataset), lambda: next(sampler), lambda: sampler.take(1.0)),
            *(lambda: sampler.update_priorities(no_keys, np.zeros(0)), lambda: sampler.delete_items(no_keys)),
            *(client.list_tables, lambda: client.update_priorities("t", [], []), lambda: client.wait_for_ready(1.0)),
            lambda: client.begin_update_priorities("t", no_keys, np.zeros(0)),
            *(lambda: dataset.priorities.send(no_keys, np.zeros(0)), dataset.priorities.flush),
            lambda: dataset.priorities.store(no_keys, np.zeros(0)),
            *(watcher.newest, lambda: watcher.wait(1.0), lambda: directory.current, lambda: directory.known(1.0)),
            lambda: next(iter(watch)),
        )
        closed = (writer.close, dataset.close, sampler.close, client.close, watcher.close, directory.close)
        done_there = (*closed, dataset.priorities.close, watch.cancel, params.close)
        for _ in range(3):
            said: SimpleQueue[str] = context.SimpleQueue()
            child = context.Process(target=_use_forked, args=(refused + done_there, said), daemon=True)
            child.start()
            stack.callback(child.kill)
            child.join(WAIT_S)
            assert child.exitcode == 0
            heard = [said.get() for _ in refused + done_there]
            assert [line for line in heard[: len(refused)] if "make it in the process that uses it" not in line] == []
            assert heard[len(refused) :] == ["no error"] * len(done_there)
        done.set()
        assert all(call.result(WAIT_S) for call in asking)
        writer.append(numbered_step(5))
        writer.create_item("t", last=1)
        writer.flush(WAIT_S)
        assert next(dataset)["number"][0, -1] == 5


@pytest.mark.parametrize("is_async", [False, True])
def test_flush_that_fails_halfway_leaves_no_hole(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """Later items reach back further than a chunk: what they need is repeated before anything else is taken."""
    table = steps_table(max_item_steps=13)
    with ReplayWriter(server.address, table, num_envs=2, chunk_length=4) as writer:

        def append(number: int) -> None:
            step = numbered_step(number)
            inner = (np.full(2, 0.5), [np.full(2, 1), np.full(2, 2)])
            writer.append({"number": np.full(2, number), "image": np.stack([step["image"]] * 2), "inner": inner})

        for number in range(10):
            append(number)
        send, calls = writer._appender.append, list[int]()

        def sent(chunks: Sequence[Chunk], items: Sequence[ItemBatch], timeout_s: float | None) -> bool:
            calls.append(len(calls))
            if 1 <= calls[-1] <= 2:
                raise Unavailable("it is away")
            return send(chunks, items, timeout_s)

        monkeypatch.setattr(writer._appender, "append", sent)
        with pytest.raises(Unavailable, match="away"):
            asyncio.run(writer.flush_async(WAIT_S)) if is_async else writer.flush(WAIT_S)
        with pytest.raises(Unavailable, match="away"):
            writer.create_item("t", last=2)
        append(10)
        writer.create_item("t", last=11)
        writer.flush(WAIT_S)
    with ReplayDataset(server.address, table, 2, timeout_s=WAIT_S, prefetch=1) as dataset:
        batch = next(dataset)
    assert [row[own].tolist() for row, own in zip(batch["number"], batch.mask, strict=True)] == [list(range(11))] * 2


def test_episode_ends_after_a_flush_that_failed_with_its_newest_steps(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial item of the end has those, not the older ones that the flush was repeating."""
    table = steps_table(max_item_steps=13)
    windows = ItemWindow(13, partial=2)
    with ReplayWriter(server.address, table, chunk_length=4, windows=windows) as writer:
        for number in range(10):
            writer.append(numbered_step(number))
        send, calls = writer._appender.append, list[int]()

        def sent(chunks: Sequence[Chunk], items: Sequence[ItemBatch], timeout_s: float | None) -> bool:
            calls.append(len(calls))
            if calls[-1] == 1:
                raise Unavailable("it is away")
            return send(chunks, items, timeout_s)

        monkeypatch.setattr(writer._appender, "append", sent)
        with pytest.raises(Unavailable, match="away"):
            writer.flush(WAIT_S)
        writer.end_episode()
        writer.flush(WAIT_S)
        assert writer.dropped_items == 0
    with ReplayDataset(server.address, table, 1, timeout_s=WAIT_S, prefetch=1) as dataset:
        batch = next(dataset)
    assert batch["number"][0][batch.mask[0]].tolist() == list(range(10))


def test_chunks_that_a_flush_repeats_share_its_timeout(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for what those before it have left; so it is where a step continues a flush that failed."""
    now_s, given = 0.0, list[float | None]()
    table = steps_table(max_item_steps=13)
    with ReplayWriter(server.address, table, chunk_length=4) as writer:
        for number in range(12):
            writer.append(numbered_step(number))
        send = writer._appender.append

        def sent(chunks: Sequence[Chunk], items: Sequence[ItemBatch], timeout_s: float | None) -> bool:
            nonlocal now_s
            given.append(timeout_s)
            now_s += 1.0
            if len(given) == 2:
                raise Unavailable("it is away")
            return send(chunks, items, timeout_s)

        monkeypatch.setattr(writer._appender, "append", sent)
        monkeypatch.setattr(writer_module, "time", Mock(monotonic=lambda: now_s))
        with pytest.raises(Unavailable, match="away"):
            writer.flush(30.0)
        writer.append(numbered_step(12), timeout_s=20.0)
        assert given == [30.0, 29.0, 20.0, 19.0, 18.0]
        writer.flush(WAIT_S)
