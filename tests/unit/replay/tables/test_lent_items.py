"""Batches that do not arrive: the table is as if they had not been drawn, whatever happened meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.replay_streams import append, make_chunk, make_config, make_items, make_replay, open_streams
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableUpdate
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.metrics import ReplayCollector
from tidemill.services.replay.tables.sampled_items import SampledItems
from tidemill.services.replay.tables.table import Table

KINDS = {kind: SelectorConfig(kind, 0.5 if kind is SelectorKind.PRIORITIZED else 0.0) for kind in SelectorKind}


class Scene:
    """A table that is written, sampled and changed, beside a plain account of what must be in it."""

    def __init__(self, kind: SelectorKind, limit: int, max_items: int = 12) -> None:
        config = make_config(
            sampler=KINDS[kind], max_items=max_items, max_item_steps=1, max_times_sampled=limit, payload_bytes=2
        )
        self.replay = make_replay(config)
        self.session = open_streams(self.replay)
        self.table: Table = self.replay.find("t")
        self.limit, self.steps = limit, 0
        self.priority: dict[int, float] = {}  # of each item that is in the table or on its way, by key
        self.times: Counter[int] = Counter()
        self.underway: list[SampledItems] = []

    def insert(self, count: int) -> None:
        """Append chunks of four steps, each with an item, as far as nothing has to be evicted."""
        before = set(self.keys())
        priorities = [float(1 + (self.steps + i) * 7 % 11) for i in range(count)]
        payloads = [bytes((i, self.steps % 256)) for i in range(count)]
        items = make_items(0, [(0, i, 1) for i in range(count)], priorities, payloads)
        append(self.replay, self.session, [make_chunk(0, 0, self.steps, 4)], [items])
        self.steps += 4
        new = [key for key in self.keys() if key not in before]
        self.priority |= dict(zip(new, priorities, strict=True))

    def keys(self) -> list[int]:
        """Return the keys of the items in the table, oldest first."""
        items = self.table.items
        keys: list[int] = items.keys(items.oldest_first()).tolist()
        return keys

    def draw(self, count: int) -> None:
        """Sample a batch that is then on its way."""
        drawn = self.table.draw(count)
        drawn.release(self.table.store)
        self.underway.append(drawn)
        self.times.update(drawn.batch.keys.tolist())

    def arrive(self, place: int) -> None:
        """Let a batch that is on its way arrive."""
        drawn = self.underway.pop(place % len(self.underway))
        self.table.arrived(drawn.batch.keys, drawn.eras)

    def come_back(self, place: int) -> None:
        """Let a batch that is on its way come back."""
        drawn = self.underway.pop(place % len(self.underway))
        self.table.came_back(drawn.batch.keys, drawn.ages, drawn.eras)
        self.times.subtract(drawn.batch.keys.tolist())

    def check(self) -> None:
        """Compare the table with the account."""
        expected = {key for key in self.priority if not self.limit or self.times[key] < self.limit}
        assert set(self.keys()) == expected
        assert self.table.size == len(expected)
        slots = self.table.items.live()
        found = dict(zip(self.table.items.keys(slots).tolist(), self.table.items.times_sampled[slots], strict=True))
        assert found == {key: self.times[key] for key in expected}
        assert self.table.counters.samples == sum(self.times.values())
        assert all(self.table.items.priorities[s] == self.priority[int(k)] for k, s in zip(found, slots, strict=True))
        if self.limit:
            assert self.table.has_draws(sum(self.limit - self.times[key] for key in expected)) or not expected
            assert not self.table.has_draws(1 + sum(self.limit - self.times[key] for key in expected))
        on_their_way = Counter(key for drawn in self.underway for key in drawn.batch.keys.tolist())
        lent = {key for key in on_their_way if self.times[key] >= self.limit} if self.limit else set()
        assert self.table.held_count == len(expected | lent)
        assert self.table.held_bytes == self.table._ref_counts.size_bytes + 2 * len(expected | lent)


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("kind", list(SelectorKind))
@settings(max_examples=40, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["insert", "draw", "arrive", "come_back"]), st.integers(0, 7)), max_size=30
    )
)
def test_batches_arrive_and_come_back_in_any_order(
    kind: SelectorKind, limit: int, moves: list[tuple[str, int]]
) -> None:
    """After every move the table has what it must, and in the end all that came back can be drawn."""
    scene = Scene(kind, limit)
    for move, number in moves:
        if move == "insert" and scene.table.held_count + number % 4 + 1 <= 12:
            scene.insert(number % 4 + 1)
        elif move == "draw" and scene.table.has_draws(number % 3 + 1):
            scene.draw(number % 3 + 1)
        elif move in ("arrive", "come_back") and scene.underway:
            getattr(scene, move)(number)
        scene.check()
    while scene.underway:
        scene.come_back(0)
        scene.check()


@pytest.mark.parametrize("limit", [0, 1, 3])
@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["insert", "draw", "arrive", "come_back", "update", "delete", "reset", "weigh"]),
            st.integers(0, 7),
        ),
        max_size=30,
    )
)
def test_items_weigh_by_the_former_exponent_until_all_weigh_by_the_new_one(
    limit: int, moves: list[tuple[str, int]]
) -> None:
    """Whatever comes, goes or comes back between the parts of the change."""
    scene = Scene(SelectorKind.PRIORITIZED, limit)
    table, wanted = scene.table, replace(scene.table.config, sampler=SelectorConfig(SelectorKind.PRIORITIZED, 2.0))
    for move, number in [("weigh", 0), *moves]:
        keys = np.array(scene.keys()[number : number + 2], np.uint64)
        if move == "weigh":
            table.shrink(wanted, 2)
        elif move == "insert" and table.held_count < 12:
            scene.insert(1)
        elif move == "draw" and table.has_draws(number % 3 + 1):
            scene.draw(number % 3 + 1)
        elif move in ("arrive", "come_back") and scene.underway:
            getattr(scene, move)(number)
        elif move == "update":
            table.update_priorities(keys, np.full(len(keys), number / 2))
        elif move == "delete":
            scene.replay.delete(table, keys)
        elif move == "reset":
            scene.replay.reset(table)
        assert table.total_weight == pytest.approx(weight_of(table, 0.5))
    scene.replay.update_table(table, TableUpdate(priority_exponent=2.0))
    assert table.total_weight == pytest.approx(weight_of(table, 2.0))
    while scene.underway:
        scene.come_back(0)
        assert table.total_weight == pytest.approx(weight_of(table, 2.0))


def weight_of(table: Table, exponent: float) -> float:
    """Return the sum of the weights of all items in a table."""
    priorities = table.items.priorities[table.items.live()]
    return float((priorities[priorities > 0] ** exponent).sum())


@pytest.mark.parametrize("kind, newest_first", [(SelectorKind.FIFO, False), (SelectorKind.LIFO, True)])
def test_order_is_that_of_insertion_after_a_batch_came_back(kind: SelectorKind, newest_first: bool) -> None:
    """Items that came back stand where they stood, also among those that were inserted meanwhile."""
    scene = Scene(kind, 1)
    scene.insert(4)
    for _ in range(2):
        scene.draw(2)
    scene.insert(3)
    scene.come_back(1)
    scene.insert(1)
    scene.come_back(0)
    keys: NDArray[np.uint64] = scene.table.draw(8).batch.keys
    numbers = (keys >> np.uint64(32)).astype(np.int64)
    assert (np.diff(numbers) == (-1 if newest_first else 1)).all()


def test_lent_items_have_room_of_their_own() -> None:
    """A full queue is drawn and filled again: nothing is evicted, and what comes back is there beside it."""
    scene = Scene(SelectorKind.FIFO, 1, max_items=8)
    for _ in range(2):
        scene.insert(4)
    scene.draw(8)
    for _ in range(2):
        scene.insert(4)
    scene.come_back(0)
    assert (scene.table.size, scene.table.counters.evictions) == (16, 0)
    scene.check()


def test_more_on_its_way_than_there_is_room_for_counts_as_arrived() -> None:
    """Readers that take and never settle cannot fill the table: the oldest of what they hold is let go."""
    scene = Scene(SelectorKind.FIFO, 1, max_items=4)
    for _ in range(10):
        scene.insert(4)
        scene.draw(4)
    assert scene.table.held_count <= scene.table.items.capacity
    newest = scene.underway[-1]
    for drawn in scene.underway:
        scene.table.came_back(drawn.batch.keys, drawn.ages, drawn.eras)
    assert set(newest.batch.keys.tolist()) <= set(scene.keys())
    assert scene.table.size <= scene.table.items.capacity


def test_changes_meanwhile_are_not_undone() -> None:
    """An item that was deleted, a table that was reset or laid out again: what comes back late changes nothing."""
    scene = Scene(SelectorKind.FIFO, 3)
    scene.insert(4)
    scene.draw(2)
    assert scene.replay.delete(scene.table, scene.underway[0].batch.keys) == 1  # twice the same item
    scene.come_back(0)
    assert scene.table.size == 3
    drawn = scene.table.draw(2)
    scene.replay.update_table(scene.table, TableUpdate(max_items=6))
    scene.table.came_back(drawn.batch.keys, drawn.ages, drawn.eras)
    assert scene.table.items.times_sampled[scene.table.items.oldest_first()].tolist() == [2, 0, 0]
    drawn = scene.table.draw(2)
    assert (scene.table.size, scene.table.held_count) == (2, 3)
    scene.replay.reset(scene.table)
    scene.table.came_back(drawn.batch.keys, drawn.ages, drawn.eras)
    assert (scene.table.size, scene.table.held_count, scene.table.counters.samples) == (0, 0, 0)


@pytest.mark.parametrize("how", ["by key", "by age", "corrupt"])
def test_items_that_were_deleted_on_their_way_do_not_come_back(how: str) -> None:
    """Those that were used up are deleted as well, with the room they held."""
    scene = Scene(SelectorKind.FIFO, 1)
    scene.insert(4)
    scene.draw(2)
    table, keys = scene.table, scene.underway[0].batch.keys
    if how == "by key":
        assert scene.replay.delete(table, keys) == 2
        assert table.counters.unknown_keys == 0
    elif how == "by age":
        assert sum(scene.replay.delete_matching(table, "", None, 2)) == 2
    else:
        assert table.drop_items_of(int(table.chunks()[0])) == 4
    left = 0 if how == "corrupt" else 2
    assert (table.size, table.held_count) == (left, left)
    scene.come_back(0)
    assert (table.size, table.held_count) == (left, left)


@pytest.mark.parametrize("settled", ["arrive", "come_back"])
def test_batch_from_before_a_change_does_not_settle_newer_draws(settled: str) -> None:
    """Its items keep key and slot when the table is laid out again, and may be on their way once more by then."""
    scene = Scene(SelectorKind.FIFO, 3)
    scene.insert(1)
    scene.draw(2)
    scene.replay.update_table(scene.table, TableUpdate(max_items=6))
    scene.draw(1)
    slots = scene.table.items.held()

    def state() -> tuple[list[int], list[int], int, int, int]:
        items = scene.table.items
        underway, times = items.underway(slots).tolist(), items.times_sampled[slots].tolist()
        return underway, times, scene.table.size, scene.table.held_count, scene.table.counters.samples

    assert state() == ([1], [3], 0, 1, 3)
    getattr(scene, settled)(0)
    assert state() == ([1], [3], 0, 1, 3)
    scene.come_back(0)
    assert state() == ([0], [2], 1, 1, 2)


@pytest.mark.parametrize("limit", [0, 3])
@pytest.mark.parametrize("change", ["reset", "limiter"])
def test_samples_from_before_a_rate_limiter_began_are_not_taken_from_it(limit: int, change: str) -> None:
    """It has never counted them: a batch that comes back late leaves its count as it is."""
    scene = Scene(SelectorKind.FIFO, limit)
    scene.insert(4)
    scene.draw(4)
    if change == "reset":
        scene.replay.reset(scene.table)
        scene.insert(4)
    else:
        scene.replay.update_table(scene.table, TableUpdate(samples_per_insert=2.0, error_buffer=9.0))
    scene.draw(4)
    first = scene.underway[0]
    scene.table.came_back(first.batch.keys, first.ages, first.eras, 4)
    assert scene.table.limiter.state[2] == 4
    assert scene.table.counters.samples == 4


def test_priority_of_an_item_that_is_used_up_is_unknown() -> None:
    """As if it had left the table: nothing is changed, and it counts as an unknown key."""
    scene = Scene(SelectorKind.MAX_HEAP, 1)
    scene.insert(4)
    scene.draw(1)
    assert scene.table.update_priorities(scene.underway[0].batch.keys, np.array([0.0])) == 0
    assert scene.table.counters.unknown_keys == 1
    scene.come_back(0)
    scene.check()


def test_metrics_do_not_fall_when_a_batch_comes_back() -> None:
    """A counter that falls is taken for one of a process that was restarted; after a reset it counts from 0."""
    scene = Scene(SelectorKind.FIFO, 1)
    collector = ReplayCollector(scene.replay, AdmissionQueue(time.monotonic))

    def samples() -> float:
        (found,) = [each for each in collector.collect() if each.name == "tidemill_replay_samples"]
        return found.samples[0].value

    scene.insert(4)
    scene.draw(3)
    assert samples() == 3
    scene.come_back(0)
    assert samples() == 3
    scene.draw(4)
    assert samples() == 4
    scene.replay.reset(scene.table)
    assert samples() == 0
