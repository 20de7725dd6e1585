"""Replay from a program of one's own: ReplayWriter and ReplayDataset against real servers."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.replay_service import LocalServer, local_server, server_process
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Unavailable
from tidemill.replay import (
    Codec,
    ColumnSpec,
    ItemWindow,
    RateLimiterConfig,
    ReplayBatch,
    ReplayClient,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    export_table,
    import_table,
    signature_like,
)

_STEP: dict[str, Any] = {"number": 0, "image": np.zeros((4, 4, 32), np.uint8), "inner": (0.5, [1, 2])}
_SIGNATURE = signature_like(_STEP)


def _table(name: str = "t", **settings: Any) -> TableConfig:  # noqa: ANN401 - settings of a table
    defaults: dict[str, Any] = {"sampler": SelectorConfig(SelectorKind.FIFO), "max_items": 1000, "max_item_steps": 4}
    return TableConfig(name, _SIGNATURE, **(defaults | {"max_times_sampled": 1} | settings))


def _step(number: int) -> dict[str, Any]:
    return _STEP | {"number": number, "image": np.full((4, 4, 32), number % 256, np.uint8)}


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """An empty server in this process."""
    with local_server() as running:
        yield running


def _numbers(address: str, table: TableConfig, count: int) -> list[list[int]]:
    """Return the steps of the oldest `count` items of a queue, by number."""
    with ReplayDataset(address, table, count, timeout_s=WAIT_S, prefetch=1) as dataset:
        batch = next(dataset)
        assert (batch["image"] == (batch["number"] % 256)[:, :, None, None, None]).all()
        return [row[own].tolist() for row, own in zip(batch["number"], batch.mask, strict=True)]


@pytest.mark.parametrize("flushed_after", [(), (0,), (2, 3), range(9)], ids=str)
@pytest.mark.parametrize("chunk_length", [1, 2, 5, 16])
def test_items_hold_the_newest_steps_whatever_is_flushed(
    server: LocalServer, chunk_length: int, flushed_after: range
) -> None:
    """A flush in the middle of a chunk neither breaks an item of later steps nor repeats one."""
    table = _table()
    with ReplayWriter(server.address, table, chunk_length=chunk_length) as writer:
        for number in range(9):
            writer.append(_step(number))
            writer.create_item("t", last=min(number + 1, 4))
            if number in flushed_after:
                writer.flush(WAIT_S)
    assert _numbers(server.address, table, 9) == [list(range(max(0, last - 3), last + 1)) for last in range(9)]
    assert server.replay.env_steps == 9


@pytest.mark.parametrize("flushed", [False, True])
def test_windows_cover_episodes(server: LocalServer, flushed: bool) -> None:
    """Every second start of three steps, none across an end, and at the end what no item has."""
    table = _table()
    with ReplayWriter(server.address, table, chunk_length=4, windows=ItemWindow(3, stride=2, partial=True)) as writer:
        for number in range(8):
            writer.append(_step(number))
            if flushed:
                writer.flush(WAIT_S)
            if number == 5:
                writer.end_episode()
        assert writer.episode_steps() == 2
        writer.end_episode()
    assert _numbers(server.address, table, 4) == [[0, 1, 2], [2, 3, 4], [4, 5], [6, 7]]


def test_environments_step_together_and_alone(server: LocalServer) -> None:
    """With a leading dimension for all of them, or without it for the one that is named."""
    table = _table()
    together = {
        "number": np.array([0, 10, 20]),
        "image": np.stack([_step(number)["image"] for number in (0, 10, 20)]),
        "inner": (np.zeros(3), np.ones((3, 2), np.int64)),
    }
    with ReplayWriter(server.address, table, num_envs=3, chunk_length=4) as writer:
        writer.append(together)
        writer.create_item("t", last=1, priority=2.0)
        writer.append(_step(11), env=1)
        writer.create_item("t", last=2, env=1)
        writer.end_episode(np.array([False, True, False]))
        assert [writer.episode_steps(env) for env in range(3)] == [1, 0, 1]
        with pytest.raises(FailedPrecondition, match="an item needs a step"):
            writer.create_item("t", last=1, env=1)
    assert sorted(_numbers(server.address, table, 4)) == [[0], [10], [10, 11], [20]]


def test_several_tables_take_items_of_one_stream(server: LocalServer) -> None:
    """Each its own; payloads come back, and a dataset mixes the tables in the fractions it was given."""
    first, second = _table("first"), _table("second", payload_bytes=3)
    with ReplayWriter(server.address, (first, second)) as writer:
        for number in range(12):
            writer.append(_step(number), params_version=7)
            writer.create_item("first" if number % 2 else "second", last=1, payload=b"" if number % 2 else b"abc")
    with ReplayDataset(server.address, {first: 0.25, second: 0.75}, 8, timeout_s=WAIT_S, prefetch=1) as dataset:
        batch = next(dataset)
    assert batch.tables.tolist() == [0] * 2 + [1] * 6
    assert batch["number"][:, 0].tolist() == [1, 3, 0, 2, 4, 6, 8, 10]
    assert batch.payloads == (b"",) * 2 + (b"abc",) * 6
    assert batch.params_versions.tolist() == [7] * 8
    assert batch.nested()["inner"]["1"].shape == (8, 4, 2)


def test_lengths_that_vary(server: LocalServer) -> None:
    """Come back as they were written, one array for each step."""
    signature = signature_like({"tokens": [1]}, max_lengths={"tokens": 50})
    table = TableConfig("t", signature, SelectorConfig(SelectorKind.FIFO), 100, 1, max_times_sampled=1)
    with ReplayWriter(server.address, table, windows=ItemWindow(1), chunk_length=1) as writer:
        for length in (3, 0, 50):
            writer.append({"tokens": np.arange(length)})
    with ReplayDataset(server.address, table, 3, timeout_s=WAIT_S, prefetch=1) as dataset:
        batch = next(dataset)
    assert [[part.tolist() for part in item] for item in batch.ragged("tokens")] == [
        [[0, 1, 2]],
        [[]],
        [list(range(50))],
    ]
    with pytest.raises(InvalidArgument, match=r"column is 'x', must be one of varying length: \['tokens'\]"):
        batch.ragged("x")


def test_what_does_not_fit_is_refused_and_changes_nothing(server: LocalServer) -> None:
    """Each error names the value and what is allowed; the stream goes on as if it had not been there."""
    table = _table()
    with ReplayWriter(server.address, table) as writer:
        writer.append(_step(0))
        for arguments, message in (
            ({"table": "u", "last": 1}, r"table is 'u', must be one of \['t'\]"),
            ({"table": "t", "last": 2}, r"last is 2, must be 1 .. 1: the steps of this episode"),
            ({"table": "t", "last": 0}, "last is 0, must be 1 .. 1"),
            ({"table": "t", "last": 1, "priority": -1.0}, "is -1.0, must be finite and not negative"),
            ({"table": "t", "last": 1, "payload": b"x"}, "payload has 1 bytes, must have 0 in table 't'"),
            ({"table": "t", "last": 1, "env": 1}, "env is 1, must be 0 .. 0"),
        ):
            with pytest.raises(InvalidArgument, match=message):
                writer.create_item(**arguments)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="column 'image' has shape"):
            writer.append(_STEP | {"image": 0})
        writer.append(_step(1))
        writer.create_item("t", last=2)
    assert _numbers(server.address, table, 1) == [[0, 1]]
    for tables, options, message in (
        ((), {}, "tables is empty"),
        ((table, table), {}, "each must be there once"),
        ((table, TableConfig("u", _SIGNATURE[:1], table.sampler, 1, 1)), {}, "'t' and 'u' differ in signature"),
        (table, {"num_envs": 0}, "num_envs is 0, must be 1 .. 16384"),
        (table, {"windows": ItemWindow(5)}, r"is 5, must be at most its max_item_steps \(4\)"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            ReplayWriter(server.address, tables, **options)
    with pytest.raises(AlreadyExists):
        ReplayWriter(server.address, _table(max_items=7))


@pytest.mark.parametrize("mirror_mib", [0, 1])
def test_samples_of_several_batches_and_a_mirror(server: LocalServer, mirror_mib: int) -> None:
    """A queue in order, batch by batch, whichever way the steps come; a mirror too small for a batch is refused."""
    table = _table()
    with ReplayWriter(server.address, table, windows=ItemWindow(3), chunk_length=4) as writer:
        for number in range(50):
            writer.append(_step(number))
    with ReplayDataset(
        server.address,
        table,
        4,
        timeout_s=WAIT_S,
        batches_per_sample=3,
        prefetch=1,
        mirror_mib=mirror_mib,
        chunk_length=4,
    ) as dataset:
        batches = [next(dataset) for _ in range(12)]
    assert [int(first) for batch in batches for first in batch["number"][:, 1]] == list(range(48))
    assert all((batch["image"] == batch["number"][:, :, None, None, None]).all() for batch in batches)
    with pytest.raises(InvalidArgument, match="mirror_mib is 1, must be 0 or at least 70 for batches of 600 items"):
        ReplayDataset(server.address, table, 600, mirror_mib=1)
    with pytest.raises(InvalidArgument, match="batches_per_sample is 0, must be at least 1"):
        ReplayDataset(server.address, table, 4, batches_per_sample=0)


def test_fractions_that_do_not_add_up(server: LocalServer) -> None:
    """Are refused with their values, as are tables that cannot be mixed and a batch too small for them."""
    first, second = _table("first"), _table("second")
    for tables, size, message in (
        ({first: 0.5, second: 0.6}, 8, r"fractions are \{'first': 0.5, 'second': 0.6\}"),
        ({first: 0.01, second: 0.99}, 8, r"batch_size is 8, which gives the tables \[0, 8\] items"),
        ({first: 0.5, _table("third", max_item_steps=2): 0.5}, 8, "differ in signature or max_item_steps"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            ReplayDataset(server.address, tables, size)


def test_batch_that_does_not_come_says_why(server: LocalServer) -> None:
    """After the deadline, with what the table holds and what its limiter asks for; the next attempt may succeed."""
    table = _table(rate_limiter=RateLimiterConfig(min_size=3))
    with (
        ReplayWriter(server.address, table) as writer,
        ReplayDataset(server.address, table, 1, timeout_s=0.3, prefetch=1) as dataset,
    ):
        with pytest.raises(Unavailable, match=r"within 0.3 s: it has 0 items after 0 inserts.* min_size 3"):
            next(dataset)
        for number in range(3):
            writer.append(_step(number))
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
    with pytest.raises(Unavailable, match=r"no replay service at 127.0.0.1:1 within 0.2 s"):
        ReplayWriter("127.0.0.1:1", _table(), timeout_s=0.2)
    with (
        ReplayDataset("127.0.0.1:1", _table(), 1, timeout_s=0.2) as dataset,
        pytest.raises(Unavailable, match=r"no replay server answers at 127.0.0.1:1"),
    ):
        next(dataset)


def test_priorities_never_reach_the_next_item_of_a_slot(server: LocalServer) -> None:
    """An item that was evicted, with another in its place: the key of the first changes nothing of the second."""
    table = _table(sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0), max_items=1, max_times_sampled=0)
    with (
        ReplayWriter(server.address, table) as writer,
        ReplayDataset(server.address, table, 1, timeout_s=WAIT_S, prefetch=1) as dataset,
        ReplayClient(server.address) as client,
    ):
        writer.append(_step(0))
        writer.create_item("t", last=1, priority=1.0)
        writer.flush(WAIT_S)
        old = next(dataset)
        writer.append(_step(1))
        writer.create_item("t", last=1, priority=3.0)
        writer.flush(WAIT_S)
        dataset.update_priorities(old, [100.0])
        described = client.describe_table("t")
        assert (described.total_weight, described.unknown_keys, described.priority_updates) == (3.0, 1, 0)
        wait_until(lambda: next(dataset)["number"][0, -1] == 1, "the new item")
        new = next(dataset)
        dataset.update_priorities(new, [7.0])
        assert client.describe_table("t").total_weight == 7.0
        with pytest.raises(InvalidArgument, match="priorities has 2 entries, must have 1"):
            dataset.update_priorities(new, [1.0, 2.0])


def test_weights_follow_the_probabilities(server: LocalServer) -> None:
    """(N p) to the power of -beta, the greatest is 1."""
    table = _table(sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0), max_times_sampled=0)
    with ReplayWriter(server.address, table) as writer:
        for number, priority in enumerate((1.0, 3.0)):
            writer.append(_step(number))
            writer.create_item("t", last=1, priority=priority)
    with ReplayDataset(server.address, table, 2, timeout_s=WAIT_S, beta=0.5, without_replacement=True) as dataset:
        batch = next(dataset)
    weights = dict(zip(batch["number"][:, -1].tolist(), batch.weights.tolist(), strict=True))
    assert weights == pytest.approx({0: 1.0, 1: 3**-0.5})


def test_killed_server_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """SIGKILL between two flushes: after its restart both halves are there, once, and the same writer goes on."""
    table = _table(max_times_sampled=0)
    options = ("--folder", str(tmp_path))
    with server_process("127.0.0.1:0", *options) as first:
        address = first.address
        writer = ReplayWriter(address, table, windows=ItemWindow(1), chunk_length=4)
        for number in range(10):
            writer.append(_step(number))
        writer.flush(WAIT_S)
        os.kill(first.pid, signal.SIGKILL)
        first.process.wait(WAIT_S)
        for number in range(10, 20):
            writer.append(_step(number))
    with server_process(address, *options), writer:
        writer.flush(WAIT_S)
        assert (writer.restarts, writer.dropped_chunks, writer.dropped_items) == (0, 0, 0)
        with ReplayDataset(address, table, 20, timeout_s=WAIT_S, without_replacement=True) as dataset:
            assert sorted(next(dataset)["number"][:, -1].tolist()) == list(range(20))


def test_server_that_kept_nothing_is_filled_again() -> None:
    """Without a folder the tables are gone with the server: the writer makes them again, and says what was dropped."""
    table = _table(max_times_sampled=0)
    with server_process() as first:
        address = first.address
        writer = ReplayWriter(address, table, chunk_length=4, max_in_flight_chunks=1)
        for number in range(6):
            writer.append(_step(number))
        writer.flush(WAIT_S)
    with server_process(address), writer:
        for number in range(6, 30):
            writer.append(_step(number))
            writer.create_item("t", last=4)
        writer.flush(WAIT_S)
        assert writer.restarts == 1
        assert writer.dropped_items > 0
        with ReplayClient(address) as client:
            assert client.describe_table("t").items + writer.dropped_items >= 24 - 4 * writer.dropped_chunks
            assert client.describe_table("t").items > 0


def test_close_ends_within_two_seconds_whatever_the_server_does() -> None:
    """One that is frozen with a call open, one that a client still waits for, and one that is gone."""
    with server_process() as server:
        table = _table()
        writer = ReplayWriter(server.address, table, chunk_length=1, max_in_flight_chunks=2)
        dataset = ReplayDataset(server.address, table, 1)
        waiting = threading.Thread(target=lambda: list(dataset), daemon=True)
        waiting.start()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for number in range(3):
                writer.append(_step(number), timeout_s=1.0)
            with pytest.raises(Unavailable, match="did not acknowledge"):
                writer.append(_step(3), timeout_s=0.2)
            late = ReplayDataset(server.address, table, 1)
            for client in (writer, dataset, late):
                began_s = time.monotonic()
                client.close()
                assert time.monotonic() - began_s < 2.0
            waiting.join(WAIT_S)
            assert not waiting.is_alive()
        finally:
            os.kill(server.pid, signal.SIGCONT)


def _use_forked(writer: ReplayWriter, dataset: ReplayDataset, said: SimpleQueue[str]) -> None:
    for call in (lambda: writer.append(_STEP), lambda: writer.flush(1.0), lambda: next(dataset)):
        try:
            call()
            said.put("no error")
        except FailedPrecondition as error:
            said.put(str(error))
    writer.close()
    dataset.close()
    said.put("closed")


def test_forked_child_is_told(server: LocalServer) -> None:
    """Every call says that it was made in another process; closing there does nothing, the parent's works on."""
    context = multiprocessing.get_context("fork")
    table = _table()
    with (
        ReplayWriter(server.address, table) as writer,
        ReplayDataset(server.address, table, 1, timeout_s=WAIT_S) as dataset,
    ):
        said: SimpleQueue[str] = context.SimpleQueue()
        child = context.Process(target=_use_forked, args=(writer, dataset, said))
        child.start()
        child.join(WAIT_S)
        assert child.exitcode == 0
        heard = [said.get() for _ in range(4)]
        assert all("make it in the process that uses it" in line for line in heard[:3]), heard
        assert heard[3] == "closed"
        writer.append(_step(5))
        writer.create_item("t", last=1)
        writer.flush(WAIT_S)
        assert next(dataset)["number"][0, -1] == 5


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.LZ4])
def test_column_of_eight_dimensions_comes_back(server: LocalServer, tmp_path: Path, codec: Codec) -> None:
    """In a batch, with a mirror, of varying length, and by way of files; nine are refused by name."""
    shape = (2, 1, 3, 1, 2, 2, 1, 2)
    table = TableConfig(
        "deep", (ColumnSpec("x", "int16", shape, codec),), SelectorConfig(SelectorKind.FIFO), 100, max_item_steps=2
    )
    values = np.arange(6 * math.prod(shape), dtype=np.int16).reshape(6, *shape)
    with ReplayWriter(server.address, table, windows=ItemWindow(2), chunk_length=4) as writer:
        for value in values:
            writer.append({"x": value})
    export_table(server.address, "deep", tmp_path / "deep")
    import_table(server.address, tmp_path / "deep", table="copy")
    for name, mirror_mib in (("deep", 0), ("deep", 1), ("copy", 0)):
        renamed = replace(table, name=name)
        with ReplayDataset(server.address, renamed, 1, timeout_s=WAIT_S, mirror_mib=mirror_mib) as dataset:
            batch = next(dataset)
            assert batch["x"].shape == (1, 2, *shape)
            np.testing.assert_array_equal(batch["x"][0], values[:2])
    with pytest.raises(InvalidArgument, match=r"shape of column 'x' is .*, must have at most 8 dimensions"):
        TableConfig("deeper", (ColumnSpec("x", "int8", (1,) * 9),), SelectorConfig(SelectorKind.FIFO), 100, 1)
    with pytest.raises(InvalidArgument, match="at most 8 dimensions"):
        signature_like({"x": np.zeros((1,) * 9)})


def test_column_of_varying_length_has_eight_dimensions(server: LocalServer) -> None:
    """The first of them varies."""
    shape = (1, 2, 1, 1, 2, 1, 1)
    signature = signature_like({"x": np.zeros((3, *shape), np.float32)}, max_lengths={"x": 5})
    table = TableConfig("ragged", signature, SelectorConfig(SelectorKind.FIFO), 100, max_item_steps=1)
    with ReplayWriter(server.address, table, windows=ItemWindow(1)) as writer:
        writer.append({"x": np.full((4, *shape), 7, np.float32)})
    with ReplayDataset(server.address, table, 1, timeout_s=WAIT_S) as dataset:
        ((found,),) = next(dataset).ragged("x")
    np.testing.assert_array_equal(found, np.full((4, *shape), 7, np.float32))
