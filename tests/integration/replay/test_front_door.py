"""Replay from a program of one's own: ReplayWriter and ReplayDataset against real servers."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.support.free_ports import free_address
from tests.support.launched import ROOT
from tests.support.naming import naming
from tests.support.numbered_steps import SIGNATURE, STEP, numbered_step, steps_table
from tests.support.replay_service import LocalServer
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from tidemill.replay import (
    HostRows,
    ItemWindow,
    RateLimiterConfig,
    ReplayBatch,
    ReplayClient,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    signature_like,
)
from tidemill.replay.writing import append_call
from tidemill.replay.writing import writer as writer_module
from tidemill.replay.writing.held_inserts import why_held_back


def _numbers(address: str, table: TableConfig, count: int) -> list[list[int]]:
    """Return the steps of the oldest `count` items of a queue, by number."""
    with ReplayDataset(address, table, count, timeout_s=WAIT_S, prefetch=1) as dataset:
        batch = next(dataset)
        assert (batch["image"] == (batch["number"] % 256)[:, :, None, None, None]).all()
        return [row[own].tolist() for row, own in zip(batch["number"], batch.mask, strict=True)]


@pytest.mark.parametrize(
    "chunk_length, flushed_after",
    [(1, (2, 3)), (2, ()), (2, range(9)), (5, (0,)), (5, (2, 3)), (16, range(9))],
    ids=str,
)
@pytest.mark.parametrize("longest, flushed_first", [(4, False), (1, True)])
def test_items_hold_the_newest_steps_whatever_is_flushed(
    server: LocalServer, chunk_length: int, flushed_after: range, longest: int, flushed_first: bool
) -> None:
    """A flush neither breaks an item of later steps nor repeats one; an item of one step may also be made behind it."""
    table = steps_table(max_item_steps=longest)
    with ReplayWriter(server.address, table, chunk_length=chunk_length) as writer:
        for number in range(9):
            writer.append(numbered_step(number))
            if flushed_first and number in flushed_after:
                writer.flush(WAIT_S)
            writer.create_item("t", last=min(number + 1, longest))
            if not flushed_first and number in flushed_after:
                writer.flush(WAIT_S)
    expected = [list(range(max(0, last - longest + 1), last + 1)) for last in range(9)]
    assert _numbers(server.address, table, 9) == expected
    assert server.replay.env_steps == 9


@pytest.mark.parametrize("flushed", [False, True])
def test_windows_cover_episodes(server: LocalServer, flushed: bool) -> None:
    """Every second start of three steps, none across an end, and at the end what no item has."""
    table = steps_table()
    with ReplayWriter(server.address, table, chunk_length=4, windows=ItemWindow(3, stride=2, partial=1)) as writer:
        for number in range(8):
            writer.append(numbered_step(number))
            if flushed:
                writer.flush(WAIT_S)
            if number == 5:
                writer.end_episode()
        assert writer.episode_steps() == 2
        writer.end_episode()
    assert _numbers(server.address, table, 4) == [[0, 1, 2], [2, 3, 4], [4, 5], [6, 7]]


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("least, tail", [(0, []), (2, [[3, 4, 5], [4, 5]]), (1, [[3, 4, 5], [4, 5], [5]])])
def test_windows_of_n_steps_end_with_the_episode(
    server: LocalServer, least: int, tail: list[list[int]], flushed: bool
) -> None:
    """With `partial` there is one from every start, down to its number of steps; of a short episode likewise."""
    table = steps_table()
    with ReplayWriter(server.address, table, chunk_length=4, windows=ItemWindow(4, partial=least)) as writer:
        for number in range(6):
            writer.append(numbered_step(number))
        if flushed:
            writer.flush(WAIT_S)
        writer.end_episode()
        writer.append(numbered_step(6))
        writer.append(numbered_step(7))
        writer.end_episode()
    short = {0: [], 1: [[6, 7], [7]], 2: [[6, 7]]}[least]
    expected = [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], *tail, *short]
    assert _numbers(server.address, table, len(expected)) == expected


def test_environments_step_together_and_alone(server: LocalServer) -> None:
    """With a leading dimension for all of them, or without it for the one that is named."""
    table = steps_table()
    together = {
        "number": np.array([0, 10, 20]),
        "image": np.stack([numbered_step(number)["image"] for number in (0, 10, 20)]),
        "inner": (np.zeros(3), np.ones((3, 2), np.int64)),
    }
    with ReplayWriter(server.address, table, num_envs=3, chunk_length=4) as writer:
        writer.append(together)
        writer.create_item("t", last=1, priority=2.0)
        writer.append(numbered_step(11), env=1)
        writer.create_item("t", last=2, env=1)
        writer.end_episode(np.array([False, True, False]))
        assert [writer.episode_steps(env) for env in range(3)] == [1, 0, 1]
        with pytest.raises(FailedPrecondition, match=naming("step")):
            writer.create_item("t", last=1, env=1)
    assert sorted(_numbers(server.address, table, 4)) == [[0], [10], [10, 11], [20]]


def test_step_may_be_a_tuple(server: LocalServer) -> None:
    """Its columns are numbered, and come back by those numbers."""
    step = (np.array([0.5, 1.5], np.float32), 3, {"inner": (True,)})
    table = TableConfig("pairs", signature_like(step), SelectorConfig(SelectorKind.UNIFORM), 10, 1)
    assert [column.name for column in table.signature] == ["0", "1", "2__inner__0"]
    with ReplayWriter(server.address, table, windows=ItemWindow(1)) as writer:
        writer.append(step)
    with ReplayDataset(server.address, "pairs", 1, timeout_s=WAIT_S) as dataset:
        batch = next(dataset)
    assert (batch["0"].tolist(), batch["1"].tolist()) == ([[[0.5, 1.5]]], [[3]])
    assert batch.nested()["2"]["inner"]["0"].tolist() == [[True]]


def _fail_after(address: str, table: TableConfig, count: int) -> None:
    with ReplayWriter(address, table, windows=ItemWindow(1), chunk_length=1) as writer:
        for number in range(count):
            writer.append(numbered_step(number))
        raise ZeroDivisionError


def test_block_that_an_error_ends_keeps_its_steps(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was appended before is stored, and the error is the block's own, also where that was not possible."""
    with monkeypatch.context() as patient:
        patient.setattr(writer_module, "_FAILED_FLUSH_S", WAIT_S)
        with pytest.raises(ZeroDivisionError):
            _fail_after(server.address, steps_table(), 3)
    assert _numbers(server.address, steps_table(), 3) == [[0], [1], [2]]
    full = steps_table("u", rate_limiter=RateLimiterConfig(queue_size=1))
    with pytest.raises(ZeroDivisionError):
        _fail_after(server.address, full, 3)  # the third waits behind the limiter for as long as nobody reads


@pytest.mark.parametrize("call", ["append", "append_async", "flush", "flush_async"])
@pytest.mark.usefixtures("patient_questions")
def test_held_back_writer_is_told_by_which_table(server: LocalServer, call: str) -> None:
    """Its error names the table, what its rate limiter asks for, and what to do."""
    table = steps_table(rate_limiter=RateLimiterConfig(10, samples_per_insert=1.0, error_buffer=20.0))
    writer = ReplayWriter(server.address, table, windows=ItemWindow(1), chunk_length=1, max_in_flight_chunks=8)
    count = 40 if call.startswith("append") else 36  # 31 are taken and 8 may wait; the last goes with the next call
    with closing(writer):
        for number in range(count):
            writer.append(numbered_step(number), timeout_s=WAIT_S)
        wait_until(lambda: writer.unacknowledged_chunks == count - 1 - 31, "the writer to be held back")

        def call_it() -> None:
            if call == "append":
                writer.append(numbered_step(count), timeout_s=0.5)
            elif call == "append_async":
                asyncio.run(writer.append_async(numbered_step(count), timeout_s=0.5))
            else:
                writer.flush(0.5) if call == "flush" else asyncio.run(writer.flush_async(0.5))

        told = naming("0.5 table 't' rate limiter: min_size 10 samples_per_insert 1 error_buffer 20 replay update")
        with pytest.raises(Unavailable, match=told):
            call_it()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.usefixtures("patient_questions")
def test_writer_without_a_timeout_warns_once_that_it_is_held_back(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, is_async: bool, flushes: bool
) -> None:
    """It continues to wait, and its user reads for what."""
    told: list[str] = []
    monkeypatch.setattr(writer_module, "_HELD_S", 0.1)
    monkeypatch.setattr(writer_module._log, "warning", lambda event, **fields: told.append(f"{event} {fields}"))
    table = steps_table(rate_limiter=RateLimiterConfig(queue_size=1))
    count, most = (3, 8) if flushes else (4, 1)  # so that only the last call has to wait
    writer = ReplayWriter(server.address, table, windows=ItemWindow(1), chunk_length=1, max_in_flight_chunks=most)

    async def write_async() -> None:
        for number in range(count):
            await writer.append_async(numbered_step(number))
        if flushes:
            await writer.flush_async(timeout_s=None)

    def write() -> None:
        for number in range(count):
            writer.append(numbered_step(number))
        if flushes:
            writer.flush(timeout_s=None)

    with ThreadPoolExecutor() as threads, closing(writer):
        writing = threads.submit(lambda: asyncio.run(write_async()) if is_async else write())
        wait_until(lambda: bool(told), "the warning")
        assert not writing.done()
        assert [_numbers(server.address, table, 1) for _ in range(2)] == [[[0]], [[1]]]
        writing.result(WAIT_S)
    assert len(told) == 1
    assert re.search(naming("table 't' rate limiter: queue_size 1"), told[0])


@pytest.mark.usefixtures("patient_questions")
def test_held_back_writer_asks_for_the_reason_once_in_a_while(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question takes a connection: calls with a short timeout that follow one another have the same answer."""
    ask = Mock(side_effect=why_held_back)
    monkeypatch.setattr(writer_module, "why_held_back", ask)
    table = steps_table(rate_limiter=RateLimiterConfig(queue_size=1))
    writer = ReplayWriter(server.address, table, windows=ItemWindow(1), chunk_length=1, max_in_flight_chunks=1)
    with closing(writer):
        for number in range(2):
            writer.append(numbered_step(number))
        wait_until(lambda: writer.unacknowledged_chunks == 0, "the first item")
        writer.append(numbered_step(2))
        for _ in range(3):
            with pytest.raises(Unavailable, match=naming("table 't' rate limiter: queue_size 1")):
                writer.append(numbered_step(3), timeout_s=0.05)
    assert ask.call_count == 1


async def test_writer_in_asyncio_asks_a_silent_server_once_in_a_while(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks twenty times a second whether there is room, and asks why not only every 10 s."""
    clock, ask = Mock(return_value=0.0), Mock(return_value="")
    monkeypatch.setattr(writer_module, "why_held_back", ask)
    table = steps_table(rate_limiter=RateLimiterConfig(queue_size=1))
    writer = ReplayWriter(server.address, table, windows=ItemWindow(1), chunk_length=1, max_in_flight_chunks=1)
    with closing(writer):
        for number in range(2):
            writer.append(numbered_step(number))
        await asyncio.to_thread(wait_until, lambda: writer.unacknowledged_chunks == 0, "the first item")
        writer.append(numbered_step(2))
        monkeypatch.setattr(writer_module, "time", Mock(monotonic=clock))
        waiting = asyncio.create_task(writer.append_async(numbered_step(3)))
        await asyncio.sleep(0)
        for asked, now_s in enumerate((5.0, 10.0, 20.0)):
            clock.return_value = now_s
            clock.reset_mock()
            await asyncio.to_thread(wait_until, lambda: clock.call_count > 9, "some looks")
            assert ask.call_count == asked
        waiting.cancel()
        await asyncio.wait((waiting,))


def test_writer_whose_name_another_takes_is_told(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one warning when the server refuses what it sends, and by the error of its next call, which names the name."""
    told: list[str] = []
    monkeypatch.setattr(append_call._log, "warning", lambda event, **fields: told.append(f"{event} {fields}"))
    table = steps_table()
    with (
        closing(ReplayWriter(server.address, table, chunk_length=1, name="same")) as first,
        ReplayWriter(server.address, table, chunk_length=1, name="same") as second,
    ):
        first.append(numbered_step(0))
        first.push()
        wait_until(lambda: bool(told), "the warning")
        with pytest.raises(FailedPrecondition, match=naming("'same' name (actor_id)")):
            first.flush(WAIT_S)
        second.append(numbered_step(0))
    assert len(told) == 1
    assert re.search(naming("name 'same' 1"), told[0].replace(":", " ").replace("}", " "))


def test_several_tables_take_items_of_one_stream(server: LocalServer) -> None:
    """Each its own; payloads come back, and a dataset mixes the tables in the fractions it was given."""
    first, second = steps_table("first"), steps_table("second", payload_bytes=3)
    with ReplayWriter(server.address, (first, second)) as writer:
        for number in range(12):
            writer.append(numbered_step(number), params_version=7)
            writer.create_item("first" if number % 2 else "second", last=1, payload=b"" if number % 2 else b"abc")
    with ReplayDataset(server.address, {first: 0.25, second: 0.75}, 8, timeout_s=WAIT_S, prefetch=1) as dataset:
        batch = next(dataset)
    assert batch.tables.tolist() == [0] * 2 + [1] * 6
    assert batch["number"][:, 0].tolist() == [1, 3, 0, 2, 4, 6, 8, 10]
    assert batch.payloads == (b"",) * 2 + (b"abc",) * 6
    assert batch.params_versions.tolist() == [7] * 8
    assert batch.nested()["inner"]["1"].shape == (8, 4, 2)


def test_chunk_has_the_version_of_its_own_environment(server: LocalServer) -> None:
    """A full one is sent after others have appended with theirs, perhaps by a writer that continues a state."""
    versions = {0: 5, 100: 2**64 - 1, 1: 6, 101: 8}
    table = steps_table()
    settings: dict[str, Any] = {"num_envs": 2, "windows": ItemWindow(1), "chunk_length": 1}
    with closing(ReplayWriter(server.address, table, **settings)) as writer:
        for number in (0, 100):
            writer.append(numbered_step(number), env=number // 100, params_version=versions[number])
        state = writer.state()
    with ReplayWriter(server.address, table, state=state, **settings) as writer:
        for number in (1, 101):
            writer.append(numbered_step(number), env=number // 100, params_version=versions[number])
    with ReplayDataset(server.address, table, 4, timeout_s=WAIT_S, prefetch=1) as dataset:
        batch = next(dataset)
    assert dict(zip(batch["number"][:, -1].tolist(), batch.params_versions.tolist(), strict=True)) == versions


def test_what_does_not_fit_is_refused_and_changes_nothing(server: LocalServer) -> None:
    """Each error names the value and what is allowed; the stream continues as if it had not been there."""
    table = steps_table()
    with ReplayWriter(server.address, table) as writer:
        writer.append(numbered_step(0))
        for arguments, message in (
            ({"table": "u", "last": 1}, "table 'u' ['t']"),
            ({"table": "t", "last": 2}, "last 2 1 1"),
            ({"table": "t", "last": 0}, "last 0 1 1"),
            ({"table": "t", "last": 1, "priority": -1e40}, "-1e+40 finite -1e+39 1e+39"),
            ({"table": "t", "last": 1, "payload": b"x"}, "payload 1 0 table 't'"),
            ({"table": "t", "last": 1, "env": 1}, "env 1 0 0"),
        ):
            with pytest.raises(InvalidArgument, match=naming(message)):
                writer.create_item(**arguments)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=naming("column 'image'")):
            writer.append(STEP | {"image": 0})
        writer.append(numbered_step(1))
        writer.create_item("t", last=2)
    assert _numbers(server.address, table, 1) == [[0, 1]]
    for tables, options, message in (
        ((), {}, "tables"),
        ((table, table), {}, "['t', 't']"),
        ((table, TableConfig("u", SIGNATURE[:1], table.sampler, 1, 1)), {}, "'t' 'u'"),
        (table, {"num_envs": 0}, "num_envs 0 1 16384"),
        (table, {"name": "my writer"}, "name 'my writer' 128"),
        (table, {"windows": ItemWindow(5)}, "5 max_item_steps 4"),
    ):
        with pytest.raises(InvalidArgument, match=naming(message)):
            ReplayWriter(server.address, tables, **options)
    with pytest.raises(AlreadyExists):
        ReplayWriter(server.address, steps_table(max_items=7))


@pytest.mark.parametrize("mirror_mib", [0, 1])
def test_samples_of_several_batches_and_a_mirror(server: LocalServer, mirror_mib: int) -> None:
    """A queue in order, batch by batch, whichever way the steps come; a mirror too small for a batch is refused."""
    table = steps_table()
    with ReplayWriter(server.address, table, windows=ItemWindow(3), chunk_length=4) as writer:
        for number in range(50):
            writer.append(numbered_step(number))
    with ReplayDataset(
        server.address,
        table,
        4,
        timeout_s=WAIT_S,
        batches_per_sample=3,
        prefetch=1,
        keep=HostRows(mirror_mib, chunk_length=4) if mirror_mib else None,
    ) as dataset:
        batches = [next(dataset) for _ in range(12)]
    assert [int(first) for batch in batches for first in batch["number"][:, 1]] == list(range(48))
    assert all((batch["image"] == batch["number"][:, :, None, None, None]).all() for batch in batches)
    with pytest.raises(InvalidArgument, match=naming("keep.mib 1 70 600")):
        ReplayDataset(server.address, table, 600, keep=HostRows(1))
    with pytest.raises(InvalidArgument, match=naming("keep.mib 1 139 600")):
        ReplayDataset([server.address, free_address()], table, 600, keep=HostRows(1))
    with pytest.raises(InvalidArgument, match=naming("batches_per_sample 0 1")):
        ReplayDataset(server.address, table, 4, batches_per_sample=0)


def test_fractions_that_do_not_add_up(server: LocalServer) -> None:
    """Are refused with their values, as are tables that cannot be mixed and a batch too small for them."""
    first, second = steps_table("first"), steps_table("second")
    for tables, size, message in (
        ({first: 0.5, second: 0.6}, 8, "fractions {'first': 0.5, 'second': 0.6}"),
        ({first: 0.01, second: 0.99}, 8, "batch_size 8 [0, 8]"),
        ({first: 0.5, steps_table("third", max_item_steps=2): 0.5}, 8, "2 4"),
    ):
        with pytest.raises(InvalidArgument, match=naming(message)):
            ReplayDataset(server.address, tables, size, create=True)


@pytest.mark.usefixtures("patient_questions")
def test_batch_that_does_not_come_says_why(server: LocalServer) -> None:
    """After the deadline, with what the table holds and what its limiter asks for; the next attempt may succeed."""
    table = steps_table(rate_limiter=RateLimiterConfig(min_size=3))
    with (
        ReplayWriter(server.address, table) as writer,
        ReplayDataset(server.address, table, 1, timeout_s=0.3, prefetch=1) as dataset,
    ):
        with pytest.raises(Unavailable, match=naming("0.3 0 0 min_size 3")):
            next(dataset)
        for number in range(3):
            writer.append(numbered_step(number))
            writer.create_item("t", last=1)
        writer.flush(WAIT_S)
        wait_until(lambda: _taken(dataset), "a batch")


def _taken(dataset: ReplayDataset) -> ReplayBatch | None:
    try:
        return next(dataset)
    except Unavailable:
        return None


def test_no_server_is_said_at_once() -> None:
    """The writer refuses to begin, the dataset's batch does not come, each within its time."""
    began_s = time.monotonic()
    with pytest.raises(Unavailable, match=naming("127.0.0.1:1 0.2")):
        ReplayWriter("127.0.0.1:1", steps_table(), timeout_s=0.2)
    with (
        ReplayDataset("127.0.0.1:1", steps_table(), 1, timeout_s=0.2, create=True) as dataset,
        pytest.raises(Unavailable, match=naming("127.0.0.1:1")),
    ):
        next(dataset)
    assert time.monotonic() - began_s < WAIT_S


def test_priorities_never_reach_the_next_item_of_a_slot(server: LocalServer) -> None:
    """An item that was evicted, with another in its place: the key of the first changes nothing of the second."""
    table = steps_table(sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0), max_items=1, max_times_sampled=0)
    with (
        ReplayWriter(server.address, table) as writer,
        ReplayDataset(server.address, table, 1, timeout_s=WAIT_S, prefetch=1) as dataset,
        ReplayClient(server.address) as client,
    ):
        writer.append(numbered_step(0))
        writer.create_item("t", last=1, priority=1.0)
        writer.flush(WAIT_S)
        old = next(dataset)
        writer.append(numbered_step(1))
        writer.create_item("t", last=1, priority=3.0)
        writer.flush(WAIT_S)
        dataset.update_priorities(old, [100.0])
        described = client.describe_table("t")
        assert (described.total_weight, described.unknown_keys, described.priority_updates) == (3.0, 1, 0)
        wait_until(lambda: next(dataset)["number"][0, -1] == 1, "the new item")
        new = next(dataset)
        dataset.update_priorities(new, [7.0])
        assert client.describe_table("t").total_weight == 7.0
        with pytest.raises(InvalidArgument, match=naming("priorities 2 1")):
            dataset.update_priorities(new, [1.0, 2.0])


_NUMBERS = TableConfig(
    "t", signature_like({"number": 0}), SelectorConfig(SelectorKind.PRIORITIZED), max_items=100, max_item_steps=1
)


@pytest.mark.parametrize("wrong", [np.nan, -1.0, 1e40])
def test_item_without_a_priority_is_left_out_of_its_message(server: LocalServer, wrong: float) -> None:
    """The error names table, value and environment, once; all steps and the other items are stored."""
    window = ItemWindow(1, priority=lambda steps: np.where(steps["number"][0] == 12, wrong, 1.0))
    with ReplayWriter(server.address, _NUMBERS, num_envs=2, chunk_length=4, windows=window) as writer:
        for number in range(4):
            writer.append({"number": [number, 10 + number]})
        with pytest.raises(InvalidArgument, match=naming(f"table 't' {wrong} environment 1 1e+39 1")):
            writer.append({"number": [4, 14]})
        writer.append({"number": [4, 14]})
        writer.flush(WAIT_S)
        assert writer.dropped_items == 1
    with ReplayClient(server.address) as client:
        assert (client.describe_table("t").items, server.replay.env_steps) == (9, 10)


@pytest.mark.parametrize("chunk_length", [2, 4])
@pytest.mark.parametrize("is_failed", [False, True])
def test_block_that_ends_with_items_without_a_priority_stores_the_rest(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, is_failed: bool, chunk_length: int
) -> None:
    """Of all environments and tables; then the first error is raised, or the one that ended the block."""
    monkeypatch.setattr(writer_module, "_FAILED_FLUSH_S", WAIT_S)
    stored = 2 * (3 // chunk_length * chunk_length)
    compute: dict[str, Any] = {
        "one": lambda steps: np.where(steps["number"][0] == 12, np.nan, 1.0),
        "two": Mock(side_effect=[np.ones(stored)] * (stored > 0) + [ZeroDivisionError()]),
    }
    windows = {name: ItemWindow(1, priority=priority) for name, priority in compute.items()}
    tables = [replace(_NUMBERS, name=name) for name in windows]

    def write() -> None:
        with ReplayWriter(server.address, tables, num_envs=2, chunk_length=chunk_length, windows=windows) as writer:
            for number in range(3):
                writer.append({"number": [number, 10 + number]})
            if is_failed:
                raise KeyError("ended")

    with pytest.raises((InvalidArgument, KeyError), match="ended" if is_failed else naming("table 'one' nan")):
        write()
    with ReplayClient(server.address) as client:
        items = [client.describe_table(name).items for name in windows]
    assert (items, server.replay.env_steps) == ([5, stored], 6)


@pytest.mark.parametrize("returned", [ZeroDivisionError(), np.ones((2, 4)), "x"])
def test_writer_continues_after_an_error_of_a_priority_function(server: LocalServer, returned: object) -> None:
    """The items that it was called for are left out, also by `state`."""
    for call in ("flush", "state"):
        priority = Mock(side_effect=[returned, np.ones(1)])
        table = replace(_NUMBERS, name=call)
        with ReplayWriter(server.address, table, windows=ItemWindow(1, priority=priority)) as writer:
            for number in range(4):
                writer.append({"number": number})
            with pytest.raises((ZeroDivisionError, InvalidArgument, ValueError)):
                getattr(writer, call)()
            getattr(writer, call)()
            writer.append({"number": 4})
            writer.flush(WAIT_S)
            assert writer.dropped_items == 4
        with ReplayClient(server.address) as client:
            assert client.describe_table(call).items == 1
    assert server.replay.env_steps == 10


def test_weights_follow_the_probabilities(server: LocalServer) -> None:
    """(N p) to the power of -beta, the greatest is 1."""
    table = steps_table(sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0), max_times_sampled=0)
    with ReplayWriter(server.address, table) as writer:
        for number, priority in enumerate((1.0, 3.0)):
            writer.append(numbered_step(number))
            writer.create_item("t", last=1, priority=priority)
    with ReplayDataset(server.address, table, 2, timeout_s=WAIT_S, beta=0.5, without_replacement=True) as dataset:
        batch = next(dataset)
    weights = dict(zip(batch["number"][:, -1].tolist(), batch.weights.tolist(), strict=True))
    assert weights == pytest.approx({0: 1.0, 1: 3**-0.5})


def test_documented_n_step_returns(capsys: pytest.CaptureFixture[str]) -> None:
    """The program of docs/replay.md prints what stands below it."""
    page = (ROOT / "docs" / "replay.md").read_text()
    found = re.search(
        r"```python\n(# n_steps.py\n.*?)```\n\n```console\n\$ env/bin/python n_steps.py\n(.*?)```", page, re.DOTALL
    )
    assert found is not None
    exec(found[1], {})
    assert capsys.readouterr().out == found[2]


@pytest.mark.parametrize("by_name", [True, False])
def test_writer_waits_for_a_table_that_another_creates(server: LocalServer, by_name: bool) -> None:
    """As an actor does for the learner's: it makes none, and says which there are when its time is over."""
    table, stop = steps_table(), threading.Event()
    named: TableConfig | str = "t" if by_name else table
    with pytest.raises((NotFound, Unavailable), match=naming("table 't'")):
        ReplayWriter(server.address, named, create=False, timeout_s=1.0)
    stop.set()
    with pytest.raises((NotFound, Unavailable)):
        ReplayWriter(server.address, named, create=False, timeout_s=None, stop=stop)
    assert not server.replay.tables
    with ThreadPoolExecutor() as threads:
        opening = threads.submit(ReplayWriter, server.address, named, create=False, timeout_s=None)
        with ReplayClient(server.address) as client:
            client.create_table(table)
        with opening.result(WAIT_S) as writer:
            writer.append(numbered_step(0))
            writer.create_item("t", last=1)
    assert _numbers(server.address, table, 1) == [[0]]


def test_full_chunk_is_pushed(server: LocalServer) -> None:
    """It goes at once and not with the next step; one that is not full stays."""
    with ReplayWriter(server.address, steps_table(), windows=ItemWindow(1), chunk_length=2) as writer:
        for number in range(3):
            writer.append(numbered_step(number))
            writer.push()
            if number == 1:
                with pytest.raises(FailedPrecondition, match=naming("sent `push`")):
                    writer.create_item("t", last=1)
        wait_until(lambda: server.replay.env_steps == 2, "the full chunk to be stored")
        assert writer.env_steps in (0, 2)  # as the newest acknowledgement said
    assert server.replay.env_steps == 3
