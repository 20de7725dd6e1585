"""One table: capacity, limits on sampling, bytes, payloads and counters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.naming import naming
from tests.support.replay_streams import (
    FIFO,
    UNIFORM,
    append,
    make_chunk,
    make_config,
    make_items,
    make_replay,
    numbers_of,
    open_streams,
    sample_from,
    steps_of,
)
from tidemill.errors import InvalidArgument
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind, TableConfig, TableUpdate
from tidemill.services.replay.state.append import AppendSession
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.table import Table

RANKED = SelectorConfig(SelectorKind.PRIORITIZED, 1.0)


def filled(
    config: TableConfig, items: int, priorities: list[float] | None = None
) -> tuple[ReplayState, Table, AppendSession]:
    """Return a table with one item for each of the first steps of a stream, in chunks of 4."""
    replay = make_replay(config)
    opened = open_streams(replay)
    extend(replay, opened, 0, items, priorities)
    return replay, replay.find("t"), opened


def extend(
    replay: ReplayState, opened: AppendSession, first: int, items: int, priorities: list[float] | None = None
) -> None:
    """Append chunks of 4 steps from step `first`, with an item of one step for each of the first `items`."""
    count = -(-items // 4)
    chunks = [make_chunk(0, 0, first + 4 * i, 4) for i in range(count)]
    picked = [(i // 4, i % 4, 1) for i in range(items)]
    append(replay, opened, chunks, [make_items(0, picked, priorities)])


def firsts(table: Table, count: int, *, without_replacement: bool = False) -> list[int]:
    """Return the first steps of a sample's items."""
    return [steps[1] for steps in steps_of(sample_from(table, count, without_replacement))]


def test_full_table_evicts_the_oldest_and_counts_them() -> None:
    """Of 12 items the 8 newest stay in a table of 8, and the chunk without items is freed."""
    replay, table, _ = filled(make_config(max_items=8, max_item_steps=1), 12)
    assert sorted(firsts(table, 8, without_replacement=True)) == list(range(4, 12))
    assert table.counters.evictions == 4
    assert replay.chunks == 2


def test_batch_larger_than_the_table_leaves_its_newest_items() -> None:
    """20 items inserted at once into a table of 8 leave the last 8."""
    _, table, _ = filled(make_config(max_items=8), 20)
    assert sorted(firsts(table, 8, without_replacement=True)) == list(range(12, 20))
    assert (table.counters.inserts, table.counters.evictions) == (20, 12)


def test_prioritized_remover_evicts_items_of_priority_zero_when_nothing_else_is_left() -> None:
    """A remover that cannot pick items of priority 0 still makes room."""
    _, table, _ = filled(make_config(max_items=4, remover=RANKED), 8, [0.0] * 8)
    assert table.size == 4


def test_max_bytes_evicts_until_the_chunks_fit() -> None:
    """Items leave, oldest first, until the chunks that the rest needs are within the limit."""
    _, table, _ = filled(make_config(), 4)
    limit = 3 * table.held_bytes
    _, table, _ = filled(make_config(max_bytes=limit), 40)
    assert 0 < table.held_bytes <= limit
    kept = sorted(firsts(table, table.size, without_replacement=True))
    assert kept == list(range(40 - table.size, 40))
    assert table.counters.evictions == 40 - table.size


def test_table_that_bytes_keep_below_min_size_is_full() -> None:
    """It may be sampled, and its inserts wait for samples, which would otherwise wait for it for ever."""
    _, table, _ = filled(make_config(), 4)
    limiter = RateLimiterConfig(min_size=30, samples_per_insert=1.0, error_buffer=8.0)
    replay, table, session = filled(make_config(max_bytes=3 * table.held_bytes, limiter=limiter), 8)
    assert table.can_insert()
    assert not table.can_sample()
    extend(replay, session, 8, 32)
    assert table.size < 30
    assert table.can_sample()
    assert not table.can_insert()
    table.delete(table.items.keys(table.items.live()))
    assert table.can_insert()


def test_table_that_bytes_keep_below_min_size_stays_full_when_its_limiter_changes() -> None:
    """Filled while the limiter is off, and at each change after that, until it has room for more bytes or is reset."""
    _, table, _ = filled(make_config(), 4)
    limiter = RateLimiterConfig(min_size=30, samples_per_insert=1.0, error_buffer=8.0)
    config = make_config(max_bytes=3 * table.held_bytes, limiter=limiter)
    replay, table, session = filled(config, 0)
    table.reconfigure(config, limiter_is_on=False)
    extend(replay, session, 0, 40)
    assert table.size < 30
    for is_on in (True, False, True):
        table.reconfigure(config, limiter_is_on=is_on)
        assert table.can_sample()
    assert table.can_insert()
    extend(replay, session, 40, 12)
    assert not table.can_insert()
    table.reconfigure(replace(config, rate_limiter=replace(limiter, min_size=20)), limiter_is_on=True)
    assert table.can_sample()
    table.reconfigure(replace(config, max_bytes=2 * config.max_bytes), limiter_is_on=True)
    assert not table.can_sample()
    table.reset()
    table.reconfigure(replace(config, max_bytes=2 * config.max_bytes), limiter_is_on=False)
    table.reconfigure(replace(config, max_bytes=2 * config.max_bytes), limiter_is_on=True)
    extend(replay, session, 52, 4)
    assert not table.can_sample()


def test_queue_hands_out_each_item_once_in_order() -> None:
    """FIFO sampling with max_times_sampled 1 is a queue: in order, once, and the chunks go with the last item."""
    replay, table, _ = filled(make_config(sampler=FIFO, max_times_sampled=1, max_item_steps=1), 8)
    assert firsts(table, 3) == [0, 1, 2]
    assert firsts(table, 5) == [3, 4, 5, 6, 7]
    assert table.size == 0
    assert replay.chunks == 1  # the stream's tail
    assert not table.can_sample(1)


def test_ordered_sampler_gives_each_item_as_often_as_it_may_be_sampled() -> None:
    """With max_times_sampled 3 the oldest item comes three times before the next."""
    _, table, _ = filled(make_config(sampler=FIFO, max_times_sampled=3), 4)
    assert firsts(table, 2) == [0, 0]
    assert firsts(table, 5) == [0, 1, 1, 1, 2]
    assert not table.has_draws(6)
    assert table.has_draws(5)


@pytest.mark.parametrize("sampler", [UNIFORM, RANKED, FIFO, SelectorConfig(SelectorKind.MAX_HEAP)])
@settings(max_examples=30, deadline=None)
@given(limit=st.integers(1, 4), batches=st.lists(st.integers(1, 10), max_size=10))
def test_no_item_is_sampled_more_often_than_it_may(sampler: SelectorConfig, limit: int, batches: list[int]) -> None:
    """Whatever the batches: `has_draws` says exactly what is left, and all of it can be drawn."""
    config = make_config(sampler=sampler, max_times_sampled=limit)
    _, table, _ = filled(config, 6, [0.5, 1.0, 2.0, 3.0, 4.0, 5.0])
    left = 6 * limit
    counts = np.zeros(6, dtype=int)
    for batch in [*batches, left]:
        size = min(batch, left)
        assert table.has_draws(left)
        assert not table.has_draws(left + 1)
        if size:
            np.add.at(counts, firsts(table, size), 1)
            left -= size
    counts_left = left
    if counts_left:
        np.add.at(counts, firsts(table, counts_left), 1)
    assert counts.tolist() == [limit] * 6
    assert table.size == 0


def test_without_replacement_no_item_comes_twice() -> None:
    """A batch as large as the table holds every item once."""
    _, table, _ = filled(make_config(sampler=RANKED), 12, [float(i + 1) for i in range(12)])
    sample = sample_from(table, 12, without_replacement=True)
    assert len(set(sample.keys.tolist())) == 12
    np.testing.assert_allclose(sample.probabilities.sum(), 1.0)
    assert not table.has_draws(13, without_replacement=True)


def test_priority_updates_count_the_last_of_a_repeated_key_and_unknown_keys() -> None:
    """A repeated key takes its last priority; keys that are not there are counted."""
    _, table, _ = filled(make_config(sampler=RANKED), 4)
    key = sample_from(table, 1).keys[0]
    keys = np.array([key, 12345, key], dtype=np.uint64)
    assert table.update_priorities(keys, np.array([9.0, 1.0, 5.0])) == 2
    assert table.total_weight == 3 + 5
    assert (table.counters.priority_updates, table.counters.unknown_keys) == (2, 1)


def test_key_of_a_removed_item_is_unknown_after_its_slot_is_used_again() -> None:
    """A key names one item forever, not a slot."""
    replay, table, opened = filled(make_config(max_items=4), 4)
    old = sample_from(table, 4, without_replacement=True).keys
    extend(replay, opened, 4, 4)
    assert table.update_priorities(old, np.ones(4)) == 0
    assert table.delete(old) == 0
    assert table.size == 4


def test_table_whose_priorities_are_all_zero_has_nothing_to_draw() -> None:
    """A sample waits until an item gets a priority."""
    _, table, _ = filled(make_config(sampler=RANKED), 4, [0.0] * 4)
    assert not table.can_sample(1)


@pytest.mark.parametrize("remover", [FIFO, RANKED, SelectorConfig(SelectorKind.PRIORITIZED, 0.5)])
def test_items_are_drawn_by_one_exponent_at_a_time(remover: SelectorConfig) -> None:
    """By the former one while they are weighed part by part, and by the new one once all are."""
    priorities = [float(i) for i in range(1, 17)]
    replay, table, _ = filled(make_config(sampler=RANKED, remover=remover, max_item_steps=1), 16, priorities)
    change = TableUpdate(priority_exponent=0.5)
    wanted = change.applied_to(table.config)

    def check_draws(exponent: float) -> None:
        weights = np.array(priorities) ** exponent
        expected = 20_000 * weights / weights.sum()
        batch = sample_from(table, 20_000)
        numbers = numbers_of(table, batch.keys)
        assert (np.abs(np.bincount(numbers, minlength=16) - expected) < 5 * np.sqrt(expected)).all()
        np.testing.assert_allclose(batch.probabilities, (expected / 20_000)[numbers])

    parts = 0
    while table.shrink(wanted, 5) is not None:
        parts += 1
        check_draws(1.0)
    assert parts == 4
    replay.update_table(table, change)
    check_draws(0.5)
    extend(replay, open_streams(replay, "b"), 0, 96, [1.0] * 96)
    assert table.size == 100


def test_payloads_come_back_with_their_items() -> None:
    """Each item's payload comes with it; a table of items without any gives none."""
    replay = make_replay(
        make_config(sampler=FIFO, max_times_sampled=1, payload_bytes=1), make_config("without", sampler=FIFO)
    )
    opened = open_streams(replay, tables=("t", "without"))
    items = make_items(0, [(0, 0, 1), (0, 1, 1), (0, 2, 1)], payloads=[b"x", b"y", b"z"])
    append(replay, opened, [make_chunk(0, 0, 0, 4)], [items, make_items(1, [(0, 0, 1)])])
    table = replay.find("t")
    assert sample_from(table, 2).payloads == (b"x", b"y")
    assert sample_from(table, 1).payloads == (b"z",)
    assert sample_from(replay.find("without"), 1).payloads == ()


def test_sampled_age_counts_the_items_inserted_after() -> None:
    """The oldest of 4 items is 3 items old."""
    _, table, _ = filled(make_config(sampler=FIFO), 4)
    sample_from(table, 2)
    assert table.counters.sampled_age == 6


def test_batch_that_a_full_table_cannot_serve_is_refused() -> None:
    """A batch of 9 from a queue of at most 8 items, or 9 distinct ones, would wait forever."""
    _, table, _ = filled(make_config(max_items=8, max_times_sampled=1), 4)
    with pytest.raises(InvalidArgument, match=naming("batch_size 9")):
        table.check_batch_size(9, without_replacement=False)
    with pytest.raises(InvalidArgument, match=naming("batch_size 9")):
        table.check_batch_size(9, without_replacement=True)
    table.check_batch_size(8, without_replacement=True)


def test_reset_empties_the_table_and_its_counters_and_streams_go_on() -> None:
    """After a reset items can be appended to the same streams, reaching back into the tail."""
    config = make_config(limiter=RateLimiterConfig(min_size=4))
    replay, table, opened = filled(config, 8)
    sample_from(table, 3)
    assert table.reset() == 8
    assert table.size == table.held_bytes == table.counters.inserts == table.counters.samples == 0
    assert not table.can_sample(1)
    append(replay, opened, [make_chunk(0, 0, 8, 4)], [make_items(0, [(0, i, 5) for i in range(4)])])
    assert table.can_sample(1)
    assert sorted(firsts(table, 4, without_replacement=True)) == [4, 5, 6, 7]


def test_tables_of_one_signature_share_chunks_until_both_let_go() -> None:
    """A chunk that two tables need is stored once and freed with the last."""
    replay = make_replay(make_config("t", max_item_steps=1), make_config("u", max_item_steps=1))
    opened = open_streams(replay, tables=("t", "u"))
    for first in (0, 4):
        both = [make_items(0, [(0, 0, 1)]), make_items(1, [(0, 1, 1)])]
        append(replay, opened, [make_chunk(0, 0, first, 4)], both)
    assert replay.chunks == 2
    replay.find("t").reset()
    assert replay.chunks == 2
    replay.find("u").reset()
    assert replay.chunks == 1


@pytest.mark.parametrize("number", [1, 2**20 - 1, 2**20, 2**40])
def test_counters_of_any_table_have_a_number_that_fits_the_wire(number: int) -> None:
    """A uint64 other than 0, and another one after a reset, however many tables there were before."""
    replay = make_replay()
    replay.next_table = number
    replay.create_table(make_config())
    table, before = replay.find("t"), replay.find("t").count_id
    extend(replay, open_streams(replay), 0, 8)
    assert table.count_id == before
    replay.reset(table)
    assert len({0, before, table.count_id}) == 3
    assert max(before, table.count_id) < 2**64
