"""How much of its memory a state takes, and what it gives up when that is full."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.naming import because, naming
from tests.support.replay_streams import append, make_chunk, make_config, make_items, open_streams
from tests.unit.replay.logs import open_log
from tidemill.arrays import Ints
from tidemill.errors import Reason, ResourceExhausted
from tidemill.replay.table_config import RateLimiterConfig, TableConfig
from tidemill.services.replay.batch_reader import BatchRoom
from tidemill.services.replay.export import TableExport
from tidemill.services.replay.sample_queue import SampleDemand, SampleQueue
from tidemill.services.replay.state.append import AppendSession
from tidemill.services.replay.state.memory import MAX_HOLDERS, MemoryBudget, default_budget_bytes
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.items import Items


def replay_of(stored_limit: int, *tables: TableConfig) -> ReplayState:
    """Return a state that may store so many bytes."""
    budget = MemoryBudget(stored_limit)
    replay = ReplayState(max_tables=4, max_streams=1000, first_epoch=1, rng=np.random.default_rng(3), budget=budget)
    for table in tables:
        replay.create_table(table)
    return replay


def write(replay: ReplayState, opened: AppendSession, chunks: int, payload: bytes = b"", first: int = 0) -> None:
    """Append chunks of four steps with an item in each, a message for each."""
    for step in range(first, first + 4 * chunks, 4):
        items = make_items(0, [(0, 3, 1)], payloads=[payload] if payload else [])
        append(replay, opened, [make_chunk(0, 0, step, 4)], [items])


def test_memory_stays_within_what_may_be_stored() -> None:
    """Whatever comes, items leave for it, oldest first, and the account is that of what is there."""
    replay = replay_of(50_000, make_config(max_items=1000))
    opened = open_streams(replay)
    write(replay, opened, 300)
    table = replay.find("t")
    assert 40_000 < replay.budget.beside_bytes <= 50_000
    assert replay.memory.evictions == table.counters.evictions == 300 - table.size
    assert table.items.ages(table.items.live()).max() == table.size - 1
    replay.reset(table)
    replay.memory.count()
    assert replay.budget.beside_bytes < 3000  # the stream and its newest chunks


@pytest.fixture
def sorts(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Exports sort once it is set."""
    may_sort, oldest_first = threading.Event(), Items.oldest_first

    def once_it_may(items: Items) -> Ints:
        assert may_sort.wait(60)
        return oldest_first(items)

    monkeypatch.setattr(Items, "oldest_first", once_it_may)
    return may_sort


async def export(replay: ReplayState) -> None:
    """Choose the items of an export, as a call does."""
    with replay.memory.holding(lambda: TableExport(replay.find("t"))) as held:
        await held.choose()


def test_export_that_still_sorts_gives_way_at_once(sorts: threading.Event) -> None:
    """Its thread reads copies: writers need not wait for it, and no more items leave than without an export."""
    replay = replay_of(50_000, make_config(max_items=1000))
    opened, table = open_streams(replay), replay.find("t")
    write(replay, opened, 300)
    size = table.size

    async def write_meanwhile() -> None:
        exporting = asyncio.create_task(export(replay))
        await asyncio.sleep(0)
        try:
            write(replay, opened, 20, first=opened.epoch.next_steps()[0])
        finally:
            sorts.set()
        with pytest.raises(ResourceExhausted, match=naming("export items"), check=because(Reason.MEMORY_FULL)):
            await exporting

    asyncio.run(write_meanwhile())
    assert size - 5 <= table.size <= size + 5
    assert 40_000 < replay.budget.beside_bytes <= 50_000


def test_table_keeps_its_items_while_it_lets_go_of_those_from_before_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is needed at once the chunks of a large table go at once: evicting items would free nothing."""
    monkeypatch.setattr("tidemill.services.replay.chunks.store._RELEASED", 20)
    replay = replay_of(50_000, make_config(max_items=1000))
    opened = open_streams(replay)
    write(replay, opened, 100)
    evictions = replay.memory.evictions
    parts = replay.resetting(replay.find("t"))
    assert next(parts) == 100
    write(replay, opened, 100, first=opened.epoch.next_steps()[0])
    assert (replay.find("t").size, replay.memory.evictions) == (100, evictions)
    assert not replay.memory.held
    assert sum(parts) == 0


def _half_reset(replay: ReplayState) -> None:
    next(replay.resetting(replay.find("t")))


def _half_shrink(replay: ReplayState) -> None:
    table = replay.find("t")
    next(replay.shrink(table, replace(table.config, max_items=10)))


@pytest.mark.parametrize(
    "free",
    [
        lambda replay: replay.reset(replay.find("t")),
        _half_reset,
        lambda replay: replay.drop_table(replay.find("t")),
        _half_shrink,
        lambda replay: replay.delete(replay.find("t"), replay.find("t").items.keys(replay.find("t").items.live())),
    ],
    ids=["reset", "half a reset", "drop", "half a shrink", "delete"],
)
def test_export_runs_on_where_items_have_left(free: Callable[[ReplayState], Any]) -> None:
    """The room that a change made is used before an export gives way."""
    replay = replay_of(50_000, make_config(max_items=1000), make_config("other"))
    opened = open_streams(replay, "two", tables=("other",))
    write(replay, opened, 20)
    write(replay, open_streams(replay), 300)
    with replay.memory.holding(lambda: TableExport(replay.find("other"))) as held:
        free(replay)
        write(replay, opened, 40, first=80)
        assert held.holds


def test_exports_that_still_sort_count_after_their_calls(sorts: threading.Event) -> None:
    """A caller that gives up and calls again takes no more threads and copies than others."""
    replay = replay_of(0, make_config())
    write(replay, open_streams(replay), 3)

    async def give_up() -> None:
        calls = [asyncio.create_task(export(replay)) for _ in range(MAX_HOLDERS)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        try:
            with pytest.raises(ResourceExhausted, match=naming("4"), check=because(Reason.TOO_MANY_EXPORTS)):
                await export(replay)
        finally:
            sorts.set()

    asyncio.run(give_up())
    asyncio.run(export(replay))


def test_table_that_memory_keeps_below_min_size_may_be_sampled() -> None:
    """Its writers run on and its readers would wait for ever."""
    replay = replay_of(50_000, make_config(max_items=1000, limiter=RateLimiterConfig(min_size=300)))
    write(replay, open_streams(replay), 300)
    assert replay.find("t").size < 300
    assert replay.find("t").can_sample()


def test_payloads_are_counted_as_they_come_and_go() -> None:
    """A table's bytes have those of its payloads: evicted, deleted or reset ones do not count."""
    replay = replay_of(0, make_config(max_items=8, max_bytes=10_000, payload_bytes=1000))
    table, opened = replay.find("t"), open_streams(replay)
    write(replay, opened, 4, b"p" * 1000)
    assert table.items.payload_bytes == 4000
    write(replay, opened, 10, b"q" * 1000, first=16)
    assert 5000 < table.held_bytes <= 10_000
    assert table.items.payload_bytes == 1000 * table.size
    table.delete(table.items.keys(table.items.live()[:1]))
    assert table.items.payload_bytes == 1000 * table.size
    table.reset()
    assert table.items.payload_bytes == 0


def test_payloads_of_a_restored_table_are_counted(tmp_path: Path) -> None:
    """After a restart the account is that of before."""
    log = open_log(tmp_path)
    log.replay.create_table(make_config(payload_bytes=100))
    write(log.replay, open_streams(log.replay), 5, b"p" * 100)
    before = log.replay.budget.beside_bytes
    log.crash()
    again = open_log(tmp_path)
    assert again.replay.find("t").items.payload_bytes == 500
    assert again.replay.budget.beside_bytes == before
    assert again.replay.find("t").store.tail_bytes == log.replay.find("t").store.tail_bytes
    again.crash()


def test_message_is_refused_where_nothing_of_its_tables_can_leave() -> None:
    """Memory full of another table's items: the call is refused and nothing has changed."""
    replay = replay_of(50_000, make_config("full", max_items=1000), make_config())
    other = open_streams(replay, "two")
    write(replay, open_streams(replay, "one", tables=("full",)), 300)
    size = replay.find("full").size
    chunks = [make_chunk(0, 0, step, 4) for step in range(0, 40, 4)]
    with pytest.raises(ResourceExhausted, match="max_memory_mib", check=because(Reason.MEMORY_FULL)):
        append(replay, other, chunks)
    assert replay.find("full").size == size
    assert replay.budget.beside_bytes <= 50_000


def test_newest_chunks_of_streams_have_a_share_of_their_own() -> None:
    """Idle actors are forgotten first; then whoever holds more than its part is refused, and no other."""
    replay = replay_of(10**6, make_config(max_item_steps=4000))
    replay.budget.share_limit = 10_000
    idle = open_streams(replay, "idle")
    write(replay, idle, 20)
    replay.close_streams(idle.epoch)
    greedy, modest = open_streams(replay, "greedy"), open_streams(replay, "modest")
    with pytest.raises(ResourceExhausted, match=naming("streams"), check=because(Reason.MEMORY_FULL)):
        write(replay, greedy, 200)
    assert not idle.epoch.current
    assert replay.find("t").store.tail_bytes == greedy.epoch.tail_bytes
    assert 9_000 < greedy.epoch.tail_bytes <= 10_000
    write(replay, modest, 10)
    assert replay.find("t").size
    greedy.epoch.close()
    modest.epoch.close()
    assert replay.find("t").store.tail_bytes == 0


def test_message_larger_than_all_that_may_wait_waits_alone() -> None:
    """A single message is never refused for its size; a second one beside it is."""
    budget = MemoryBudget(1000)
    budget.hold_message(5000)
    with pytest.raises(ResourceExhausted, match=naming("max_memory_mib"), check=because(Reason.MEMORY_FULL)):
        budget.hold_message(1)
    budget.message_bytes -= 5000
    budget.hold_message(400)
    budget.hold_message(100)


def test_budget_is_that_of_the_container_or_a_part_of_the_machine() -> None:
    """Three quarters of a container's limit; without one, half of the machine divided by the shards on it."""
    assert default_budget_bytes(4, 1_073_741_824) == 805_306_368
    whole = default_budget_bytes(1, None)
    assert default_budget_bytes(1, 2**60) == whole > 2**28
    assert default_budget_bytes(4, None) == whole // 4


def test_largest_batch_has_an_eighth_of_the_whole_memory() -> None:
    """A quarter is for batches, and each is there twice: docs/replay.md says so."""
    assert BatchRoom(MemoryBudget(800_000 // 2), lambda: None).largest == 100_000


async def test_credit_that_comes_in_many_messages_is_one_entry() -> None:
    """What a caller grants without taking is added up: memory holds the sum, and draws stay where they were."""
    credit = SampleQueue(8)
    for _ in range(1000):
        credit.grant(2)
    credit.draw(3, 3)
    credit.grant(1)
    credit.close()
    assert len(credit._waiting) == 3
    taken = [await credit.take() for _ in range(2003)]
    assert taken == [SampleDemand(8)] * 2000 + [SampleDemand(3, 3, 8), SampleDemand(8), None]
