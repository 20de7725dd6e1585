"""How an iteration over batches is drawn and how it ends: seeds, epochs, what is left of a queue."""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from tests.support.naming import naming
from tests.support.numbered_steps import awaited_numbers, numbered_step, steps_table
from tests.support.proxy import Proxy
from tests.support.replay_service import LocalServer, server_process
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import InvalidArgument, Unavailable
from tidemill.replay import (
    Decoding,
    HostRows,
    ItemWindow,
    RateLimiterConfig,
    ReplayClient,
    ReplayDataset,
    ReplaySampler,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
)
from tidemill.replay.sampling import late_batches
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.channel import open_channel

_UNIFORM = SelectorConfig(SelectorKind.UNIFORM)
_RANKED = SelectorConfig(SelectorKind.PRIORITIZED, 1.0)
_POOL = steps_table(sampler=_UNIFORM, max_times_sampled=0, max_item_steps=1)


def _write(address: str, table: TableConfig, numbers: Sequence[int]) -> None:
    with ReplayWriter(address, table) as writer:
        for number in numbers:
            writer.append(numbered_step(number))
            writer.create_item(table.name, last=1, priority=number + 1.0)


def _numbers(dataset: ReplayDataset, batches: int | None = None) -> list[list[int]]:
    return [batch["number"][:, -1].tolist() for batch in itertools.islice(dataset, batches)]


def _taken(dataset: ReplayDataset) -> list[int]:
    """Return the numbers of the next batch; none if it does not come in time."""
    try:
        return _joined(_numbers(dataset, 1))
    except Unavailable:
        return []


def _awaited(dataset: ReplayDataset) -> list[int]:
    """Return the numbers of the next batch, which must come, but in one of several attempts on a busy machine."""
    numbers: list[int] = []

    def has_come() -> bool:
        numbers[:] = _taken(dataset)
        return bool(numbers)

    wait_until(has_come, "a batch")
    return numbers


def _joined(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


@pytest.mark.parametrize("without_replacement", [False, True])
@pytest.mark.parametrize("sampler", [_UNIFORM, _RANKED])
def test_seed_gives_the_same_draws(server: LocalServer, sampler: SelectorConfig, without_replacement: bool) -> None:
    """Of a table that stays as it is, whatever was drawn before; another seed gives others, as do two tables."""
    table = steps_table(sampler=sampler, max_times_sampled=0)
    _write(server.address, table, range(40))

    opened = partial(ReplayDataset, server.address, "t", 8, without_replacement=without_replacement, timeout_s=WAIT_S)

    def drawn(seed: int | None, *, prefetch: int = 4, batches_per_sample: int = 1) -> list[list[int]]:
        with opened(seed=seed, prefetch=prefetch, batches_per_sample=batches_per_sample) as dataset:
            return _numbers(dataset, 6)

    first = drawn(7)
    assert drawn(7, prefetch=1) == first
    assert drawn(8) != first
    assert drawn(None) != drawn(None)
    grouped = drawn(7, batches_per_sample=2)
    assert drawn(7, batches_per_sample=2) == grouped


def test_tables_of_a_mixture_have_seeds_of_their_own(server: LocalServer) -> None:
    """Two that are alike are not drawn alike."""
    other = steps_table("u", sampler=_UNIFORM, max_times_sampled=0, max_item_steps=1)
    for table in (_POOL, other):
        _write(server.address, table, range(1000))
    runs = []
    for _ in range(2):
        with ReplayDataset(server.address, {"t": 0.5, "u": 0.5}, 32, seed=3, timeout_s=WAIT_S) as dataset:
            runs.append(_numbers(dataset, 2))
    assert runs[0] == runs[1]
    assert runs[0][0][:16] != runs[0][0][16:]


@pytest.mark.parametrize("batches_per_sample", [1, 3])
@pytest.mark.parametrize("mirror_mib", [0, 8])
def test_every_item_comes_once_in_an_epoch(server: LocalServer, batches_per_sample: int, mirror_mib: int) -> None:
    """In another order each time; the last batch of an epoch is smaller, or left out; then the iteration ends."""
    _write(server.address, _POOL, range(50))
    table = partial(ReplayDataset, server.address, "t", 8, batches_per_sample=batches_per_sample, timeout_s=WAIT_S)
    opened = partial(table, epochs=2, keep=HostRows(mirror_mib) if mirror_mib else None)
    with opened(allow_smaller=True, seed=1) as dataset:
        batches = _numbers(dataset)
        assert next(dataset, None) is None
    assert [len(batch) for batch in batches] == [8, 8, 8, 8, 8, 8, 2] * 2
    epochs = [_joined(batches[:7]), _joined(batches[7:])]
    assert [sorted(epoch) for epoch in epochs] == [list(range(50))] * 2
    assert epochs[0] != epochs[1]
    with opened(allow_smaller=True, seed=1) as dataset:
        assert _numbers(dataset) == batches
    with opened() as dataset:
        assert [len(batch) for batch in _numbers(dataset)] == [8] * 12
    with opened(epochs=0) as dataset:
        counts = Counter(_joined(_numbers(dataset, 60)))
        assert sum(counts.values()) == 480


def test_epoch_holds_what_stays_and_nothing_twice(server: LocalServer) -> None:
    """Items that leave in the middle do not come any more; those that come take their slots, and come once at most."""
    table = steps_table(sampler=_UNIFORM, max_items=40, max_times_sampled=0, max_item_steps=1)
    _write(server.address, table, range(40))
    with ReplayDataset(server.address, "t", 4, epochs=1, prefetch=1, allow_smaller=True, timeout_s=WAIT_S) as dataset:
        seen = _joined(_numbers(dataset, 4))
        _write(server.address, table, range(40, 60))  # in place of 0 .. 19
        later = _joined(_numbers(dataset))
    counts = Counter(seen + later)
    assert set(counts.values()) == {1}
    assert set(range(20, 40)) <= set(counts)
    assert not set(later[4:]) & set(range(20))  # a batch was on its way


def test_epoch_continues_over_a_restart_of_the_server(tmp_path: Path) -> None:
    """A kill in the middle of an epoch: with the log nothing comes twice, and only batches under way are missing."""
    options = ("--folder", str(tmp_path))
    with server_process("127.0.0.1:0", *options) as first:
        _write(first.address, _POOL, range(200))
        dataset = ReplayDataset(first.address, "t", 4, epochs=1, prefetch=1, timeout_s=WAIT_S)
        seen = _joined(_numbers(dataset, 10))
        os.kill(first.pid, signal.SIGKILL)
        first.process.wait(WAIT_S)
    with server_process(first.address, *options), dataset:
        counts = Counter(seen + _joined(_numbers(dataset)))
    assert set(counts.values()) == {1}
    assert len(counts) >= 200 - 4


@pytest.mark.usefixtures("patient_questions")
def test_rest_of_a_queue_is_given_out(server: LocalServer) -> None:
    """Ten items by four: the last two wait for more until the time is over, and the iteration then ends."""
    table = steps_table()
    _write(server.address, table, range(10))
    with ReplayDataset(server.address, "t", 4, timeout_s=0.3, allow_smaller=True, end_on_timeout=True) as dataset:
        assert [_awaited(dataset) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert _numbers(dataset) == []
    with ReplayClient(server.address) as client:
        assert client.describe_table("t").items == 0
    _write(server.address, table, range(6))
    with ReplayDataset(server.address, "t", 4, timeout_s=0.3, end_on_timeout=True) as dataset:
        assert [awaited_numbers(dataset), *_numbers(dataset)] == [[0, 1, 2, 3]]  # what is left stays in the queue
    with ReplayDataset(server.address, "t", 4, timeout_s=0.3) as dataset:
        with pytest.raises(Unavailable, match=naming("2 4 allow_smaller=True")):
            next(dataset)
        _write(server.address, table, range(6, 8))
        assert awaited_numbers(dataset) == [4, 5, 6, 7]


def test_reader_that_draws_on_demand_leaves_a_queue_to_the_others(server: LocalServer) -> None:
    """Each of two readers gets a batch of two, whoever comes first, and whether the first decodes what it draws."""
    table = steps_table(max_item_steps=1)
    _write(server.address, table, range(4))

    with ReplayDataset(server.address, table, 2, prefetch=0, timeout_s=WAIT_S) as first:
        assert _numbers(first, 1) == [[0, 1]]
        with ReplayDataset(server.address, table, 2, prefetch=0, timeout_s=WAIT_S) as second:
            assert _numbers(second, 1) == [[2, 3]]
        assert first.take(0.0) is None
        _write(server.address, table, [4, 5])
        assert _numbers(first, 1) == [[4, 5]]

    with (
        closing(SampleStream(ShardDirectory([server.address]), table, 2, max_in_flight_batches=0)) as shared,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = [pool.submit(shared.take, 10.0) for _ in range(2)]
        wait_until(lambda: len(shared._underway) == 2, "a draw for each thread")
        _write(server.address, table, range(6, 10))
        assert all(future.result() is not None for future in waiting)

    for others in ({"decoding": Decoding(threads=1)}, {"prefetch": -1}):
        with pytest.raises(InvalidArgument, match=naming("prefetch", "at least")):
            ReplayDataset(server.address, table, 2, **{"prefetch": 0} | others)


def test_interrupted_wait_for_a_draw_on_demand_is_over(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next reader draws one batch, its own, and leaves the rest of the queue."""
    table = steps_table(max_item_steps=1)
    with closing(SampleStream(ShardDirectory([server.address]), table, 2, max_in_flight_batches=0)) as stream:
        with monkeypatch.context() as interrupted:
            interrupted.setattr(stream._changed, "wait_for", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                stream.take(WAIT_S)
        _write(server.address, table, range(4))
        assert stream.take(WAIT_S) is not None
        with ReplayDataset(server.address, table, 2, prefetch=0, timeout_s=5.0) as other:
            assert _numbers(other, 1) == [[2, 3]]


@pytest.mark.usefixtures("patient_questions")
def test_smaller_batch_does_not_wait_behind_a_reader_of_whole_ones(server: LocalServer) -> None:
    """Of three items a reader who waits for four takes none, and one who takes fewer gets them."""
    _write(server.address, steps_table(), range(3))
    with ReplayDataset(server.address, "t", 4, timeout_s=WAIT_S, prefetch=1) as whole:
        waiting = threading.Thread(target=lambda: next(whole, None), daemon=True)
        waiting.start()
        table = server.replay.find("t")
        wait_until(lambda: server.admission.waiting(table, "sample") == 1, "the reader of whole batches to wait")
        with ReplayDataset(server.address, "t", 4, timeout_s=0.3, prefetch=1, allow_smaller=True) as fewer:
            assert _awaited(fewer) == [0, 1, 2]
            with pytest.raises(Unavailable, match=naming("0")):
                next(fewer)
        whole.close()
        waiting.join(WAIT_S)


def test_smaller_batch_that_is_asked_for_while_a_whole_one_is_drawn_is_that_one(server: LocalServer) -> None:
    """The next batch waits for as many items as any other."""
    _write(server.address, steps_table(), range(5))
    asked = pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=4, allow_smaller=True), credit=2, smaller=True)
    with open_channel(server.address) as channel:
        answers = replay_pb2_grpc.ReplayServiceStub(channel).Sample(iter([asked]), timeout=WAIT_S)
        assert len(next(answers).keys) == 4
        table = server.replay.find("t")
        wait_until(lambda: server.admission.waiting(table, "sample") == 1, "the next draw to wait")
        _write(server.address, steps_table(), range(5, 8))
        assert len(next(answers).keys) == 4


@pytest.mark.parametrize("after, size", [(0, 4), (1, 1), (None, 1)], ids=["late", "in time", "of an earlier version"])
def test_smaller_batch_is_not_the_one_after_a_batch_that_answers_the_request(
    server: LocalServer, after: int | None, size: int
) -> None:
    """The first batch was on its way to the caller when that asked: the next one waits for as many items."""
    _write(server.address, steps_table(), range(5))
    requests: queue.SimpleQueue[pb.SampleRequest] = queue.SimpleQueue()
    requests.put(pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=4, allow_smaller=True), credit=3))
    with open_channel(server.address) as channel:
        answers = replay_pb2_grpc.ReplayServiceStub(channel).Sample(iter(requests.get, None), timeout=WAIT_S)
        assert (first := next(answers)).number == 1
        assert len(first.keys) == 4
        requests.put(pb.SampleRequest(smaller=True, smaller_after=after))
        if size == 4:
            time.sleep(0.2)  # or the items might be there before the request is
            _write(server.address, steps_table(), range(5, 8))
        assert len(next(answers).keys) == size
        answers.cancel()


def test_smaller_batch_comes_after_others_and_after_a_lost_connection(server: LocalServer) -> None:
    """Each request counts only the batches of its call, or it would be taken for a late one."""
    table = steps_table()
    _write(server.address, table, range(5))
    with (
        Proxy(server.address) as proxy,
        ReplayDataset(proxy.address, table, 4, timeout_s=1.0, prefetch=1, allow_smaller=True) as dataset,
    ):
        assert [_awaited(dataset) for _ in range(2)] == [[0, 1, 2, 3], [4]]
        _write(server.address, table, range(5, 6))
        proxy.cut()
        assert _awaited(dataset) == [5]


def test_smaller_batch_is_asked_for_without_a_connection(server: LocalServer) -> None:
    """The request waits for one: for the first, for the next after a loss, and where its answer was lost."""
    table = steps_table()
    with Proxy(server.address) as proxy, ExitStack() as stack:
        _write(server.address, table, range(3))
        with proxy.refusing():
            sampler = ReplaySampler(proxy.address, table, 8, allow_smaller=True, create=True)
            stack.enter_context(closing(sampler))
            sampler.ask_smaller()
        assert _size_of(sampler) == 3
        _write(server.address, table, range(3, 5))
        before = proxy.refused
        with proxy.refusing():
            wait_until(lambda: proxy.refused > before, "the loss to be noticed")
            sampler.ask_smaller()
        assert _size_of(sampler) == 2
        _write(server.address, table, range(5, 6))
        with proxy.without_answers():
            sampler.ask_smaller()
            wait_until(lambda: not server.replay.find("t").size, "the item to be sent")
        assert _size_of(sampler) == 1


def _size_of(sampler: ReplaySampler) -> int:
    batch = sampler.take(WAIT_S)
    assert batch is not None, "no batch"
    return len(batch.keys)


def test_smaller_batches_are_asked_for_at_any_moment(tmp_path: Path) -> None:
    """While a whole one may just be drawn: each item comes once, in order, and no call is left waiting."""
    table = steps_table()
    options = ("--folder", str(tmp_path))
    with server_process("127.0.0.1:0", *options) as server, ReplayWriter(server.address, table) as writer:
        seen: list[int] = []
        with ReplayDataset(server.address, table, 4, timeout_s=0.001, allow_smaller=True, prefetch=2) as dataset:
            for number in range(60):
                writer.append(numbered_step(number))
                writer.create_item("t", last=1)
                if number % 7 == 6:
                    writer.flush(WAIT_S)
                    seen += _taken(dataset)
            writer.flush(WAIT_S)
            deadline_s = time.monotonic() + WAIT_S
            while len(seen) < 60 and time.monotonic() < deadline_s:
                seen += _taken(dataset)
        assert seen == list(range(60))


def test_batch_without_replacement_may_be_smaller(server: LocalServer) -> None:
    """Of a table with fewer items than a batch."""
    _write(server.address, _POOL, range(3))
    with ReplayDataset(server.address, "t", 8, timeout_s=0.3, without_replacement=True, allow_smaller=True) as dataset:
        assert sorted(_awaited(dataset)) == [0, 1, 2]


def test_server_that_is_gone_does_not_end_an_iteration() -> None:
    """`end_on_timeout` is for tables that give no more."""
    with (
        ReplayDataset("127.0.0.1:1", _POOL, 1, timeout_s=0.2, end_on_timeout=True, create=True) as dataset,
        pytest.raises(Unavailable, match=naming("127.0.0.1:1")),
    ):
        next(dataset)


def test_what_a_table_cannot_do_is_refused(server: LocalServer) -> None:
    """By name and value, before anything is drawn."""
    ranked, queue, other = steps_table("r", sampler=_RANKED, max_times_sampled=0), steps_table("q"), steps_table("o")
    with ReplayClient(server.address) as client:
        for table in (ranked, queue, _POOL, other):
            client.create_table(table)
    opened = partial(ReplayDataset, server.address)
    for call, message in (
        (
            partial(opened, "r", 1, epochs=1),
            "table 'r' prioritized max_times_sampled 0 epochs",
        ),
        (partial(opened, "q", 1, epochs=1), "table 'q' fifo max_times_sampled 1 epochs"),
        (partial(opened, "t", 1, epochs=-1), "epochs -1 0"),
        (partial(opened, "t", 1, seed=-1), "seed -1 0 18446744073709551615"),
        (partial(opened, {"q": 0.5, "o": 0.5}, 2, allow_smaller=True), "2"),
        (
            partial(ReplayDataset, [server.address, "127.0.0.1:1"], _POOL, 2, create=True, seed=1),
            "seed allow_smaller epochs schedule",
        ),
    ):
        with pytest.raises(InvalidArgument, match=naming(message)):
            call()


@pytest.mark.parametrize("settings", [{"sampler": _UNIFORM, "max_times_sampled": 0}, {}])
@pytest.mark.usefixtures("patient_questions")
def test_smaller_batch_is_advised_only_where_one_would_come(server: LocalServer, settings: dict[str, Any]) -> None:
    """Not where the limiter waits: an item drawn with replacement may come eight times."""
    _write(server.address, steps_table(rate_limiter=RateLimiterConfig(min_size=4), **settings), range(3))
    with (
        ReplayDataset(server.address, "t", 8, timeout_s=0.1) as dataset,
        pytest.raises(Unavailable, match=naming("3 items min_size 4")) as raised,
    ):
        next(dataset)
    assert "allow_smaller" not in str(raised.value)


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.usefixtures("patient_questions")
def test_table_smaller_than_a_batch_is_told_in_time(server: LocalServer, threads: int) -> None:
    """The epochs of so few items have no batch: `next` waits no longer than it may, and says what takes them."""
    _write(server.address, _POOL, range(3))
    with ReplayDataset(server.address, "t", 8, epochs=0, timeout_s=1.0, decoding=Decoding(threads=threads)) as dataset:
        began_s = time.monotonic()
        with pytest.raises(Unavailable, match=naming("3 items 8 allow_smaller")):
            next(dataset)
        assert time.monotonic() - began_s < WAIT_S


def test_program_ends_with_iterations_under_way(server: LocalServer) -> None:
    """At once and without a word, though no thread runs any more when they are closed; a writer says what is lost."""
    code = """
import sys
from tests.support.numbered_steps import numbered_step, steps_table
from tidemill import ParamsWatcher
from tidemill.replay import ReplayDataset, ReplaySampler, ReplayWriter
address, table = sys.argv[1], steps_table(max_times_sampled=0)

def written():
    with ReplayWriter(address, table) as writer:
        writer.append(numbered_step(0))
        yield

def batches(opened):
    with opened as source:
        while True:
            yield next(source)

def watched():
    with ParamsWatcher("127.0.0.1:1") as watcher:
        while True:
            yield watcher.newest()

class Actor:
    def __init__(self):
        self.writer = ReplayWriter(address, table)

    def __del__(self):
        self.writer.close()

begun = [written(), batches(ReplayDataset(address, table, 1)), batches(ReplaySampler(address, table, 1)), watched()]
for each in begun:
    next(each)
actor = Actor()
"""
    _write(server.address, steps_table(max_times_sampled=0), [1])
    command = [sys.executable, "-c", code, server.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    said = [line for line in done.stderr.splitlines() if not line.startswith("cannot fetch parameters")]
    assert len(said) == 1
    assert re.match(r".*failed `with` block.*ReplayWriter is used while Python ends", said[0])


def test_block_that_ends_with_a_forked_child_says_nothing(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent has the steps, and stores them."""
    with ReplayWriter(server.address, steps_table()) as writer:
        writer.append(numbered_step(0))
        with monkeypatch.context() as child, capture_logs() as logs:
            child.setattr(os, "getpid", Mock(return_value=os.getpid() + 1))
            child.setattr(sys, "is_finalizing", Mock(return_value=True))
            writer.__exit__(GeneratorExit, GeneratorExit(), None)
    assert not logs


@pytest.mark.parametrize("reader", ["next", "anext", "sampler"])
@pytest.mark.usefixtures("patient_questions")
def test_wait_without_a_timeout_is_explained_once(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """A writer holds its first steps until a chunk is full: its user reads what the table has, and what sends them."""
    told: list[str] = []
    looks: list[float] = []
    is_due = late_batches.LateBatches.is_due

    def looked(late: late_batches.LateBatches, began_s: float) -> bool:
        looks.append(began_s)
        return is_due(late, began_s)

    monkeypatch.setattr(late_batches, "_LATE_S", 0.1)
    monkeypatch.setattr(late_batches.LateBatches, "is_due", looked)
    monkeypatch.setattr(late_batches._log, "warning", lambda event, **fields: told.append(f"{event} {fields}"))
    table = steps_table(max_item_steps=1)
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(1))
        writer = stack.enter_context(ReplayWriter(server.address, table, windows=ItemWindow(1)))
        opened: Any = ReplaySampler if reader == "sampler" else ReplayDataset
        source = stack.enter_context(opened(server.address, table, 5))
        for number in range(10):
            writer.append(numbered_step(number))
        reading = threads.submit(lambda: asyncio.run(anext(source)) if reader == "anext" else next(source))
        wait_until(lambda: bool(told), "the warning")
        looks.clear()
        wait_until(lambda: len(looks) > 3, "further looks, at a wait that is long by now")
        assert not reading.done()
        writer.flush(WAIT_S)
        reading.result(WAIT_S)
    assert len(told) == 1
    assert re.search(naming("'t' 0 items 0 inserts min_size 1 chunk flush"), told[0])


@pytest.mark.parametrize(
    "epochs, allow_smaller, remedy",
    [
        (None, False, "allow_smaller=True timeout_s takes"),
        (None, True, "timeout_s takes"),
        (0, False, "allow_smaller=True takes"),
    ],
)
@pytest.mark.usefixtures("patient_questions")
def test_wait_for_a_table_smaller_than_a_batch_names_what_takes_it(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, epochs: int | None, allow_smaller: bool, remedy: str
) -> None:
    """Without a timeout a smaller batch is asked for at the end of an epoch alone."""
    told: list[str] = []
    monkeypatch.setattr(late_batches, "_LATE_S", 0.1)
    monkeypatch.setattr(late_batches._log, "warning", lambda _, **fields: told.append(fields["reason"]))
    table = steps_table() if epochs is None else _POOL
    _write(server.address, table, range(3))
    with (
        ThreadPoolExecutor(1) as threads,
        ReplayDataset(server.address, "t", 8, epochs=epochs, allow_smaller=allow_smaller) as dataset,
    ):
        reading = threads.submit(next, dataset)
        wait_until(lambda: bool(told), "the warning")
        dataset.close()
        with pytest.raises(StopIteration):
            reading.result(WAIT_S)
    assert re.search(naming(remedy), told[0])
    assert ("timeout_s" in told[0], "allow_smaller" in told[0]) == (epochs is None, not allow_smaller)


def test_silent_servers_are_asked_for_the_reason_together() -> None:
    """However many there are, an overdue batch is refused half a second later."""
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(60)]
        addresses = [f"127.0.0.1:{port}" for port in silent]
        dataset = stack.enter_context(ReplayDataset(addresses, _POOL, 1, timeout_s=0.1, create=True))
        began_s = time.monotonic()
        with pytest.raises(Unavailable, match=naming(f"{addresses[0]} {addresses[-1]}")):
            next(dataset)
        assert time.monotonic() - began_s < 15  # 30 if asked in turn
