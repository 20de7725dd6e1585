"""Draws with a seed: what they pick depends on the items and where they lie, not on what happened before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.naming import because, naming
from tests.support.replay_streams import (
    FIFO,
    UNIFORM,
    append,
    make_chunk,
    make_config,
    make_items,
    make_replay,
    open_streams,
)
from tidemill.errors import FailedPrecondition, Reason
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.services.replay.tables.table import Table

_RANKED = SelectorConfig(SelectorKind.PRIORITIZED, 1.0)


def _filled(config: TableConfig, chunks: int) -> Table:
    """Return a table with four items of one step for each chunk, the n-th of priority n."""
    replay = make_replay(config)
    session = open_streams(replay)
    for number in range(chunks):
        priorities = [4.0 * number + i + 1 for i in range(4)]
        items = make_items(0, [(0, i, 1) for i in range(4)], priorities)
        append(replay, session, [make_chunk(0, 0, 4 * number, 4)], [items])
    return replay.find("t")


def _keys(table: Table, seed: int, count: int = 16) -> list[int]:
    drawn = table.draw(count, seed=seed)
    drawn.release(table.store)
    keys: list[int] = drawn.batch.keys.tolist()
    return keys


@settings(max_examples=25, deadline=None)
@given(ranked=st.booleans(), chunks=st.integers(1, 30), other_draws=st.integers(0, 5), seed=st.integers(0, 2**64 - 1))
def test_draw_does_not_depend_on_other_draws(ranked: bool, chunks: int, other_draws: int, seed: int) -> None:
    """A table that was drawn from in between, with its items evicted on the way, gives what a fresh one gives."""
    config = make_config(sampler=_RANKED if ranked else UNIFORM, max_items=40, max_item_steps=1)
    used, fresh = _filled(config, chunks), _filled(config, chunks)
    for _ in range(other_draws):
        used.draw(8).release(used.store)
        _keys(used, seed ^ 1)
    assert _keys(used, seed) == _keys(fresh, seed)


def test_draw_does_not_depend_on_the_order_in_which_a_list_was_filled() -> None:
    """An item that was removed leaves the dense list of a uniform table in another order, but not its slots."""
    config = make_config(max_items=40, max_item_steps=1)
    table = _filled(config, 10)
    table.delete_slots(np.array([3, 17]))
    slots = np.flatnonzero(table.items.lengths[: table.items.used])
    picked = np.random.default_rng(5).integers(38, size=16)
    assert _keys(table, 5) == table.items.keys(slots[picked]).tolist()


def test_prioritized_draws_follow_the_priorities() -> None:
    """An item of all the weight is always drawn, with probability 1."""
    table = _filled(make_config(sampler=_RANKED, max_item_steps=1), 2)
    keys = table.items.keys(np.arange(8))
    table.update_priorities(keys, np.array([0.0, 0, 0, 2, 0, 0, 0, 0]))
    drawn = table.draw(5, seed=9)
    assert drawn.batch.keys.tolist() == [int(keys[3])] * 5
    assert drawn.batch.probabilities.tolist() == [1.0] * 5
    drawn.release(table.store)


def test_two_seeds_give_two_batches() -> None:
    """The seed is what a draw depends on."""
    table = _filled(make_config(max_item_steps=1), 20)
    assert _keys(table, 1) != _keys(table, 2)


@pytest.mark.parametrize("config", [make_config(sampler=FIFO), make_config(max_times_sampled=1)])
def test_table_whose_draws_depend_on_each_other_refuses_a_seed(config: TableConfig) -> None:
    """A queue, or a table that gives an item only so often, has no draw that could be repeated."""
    with pytest.raises(FailedPrecondition, match=naming("seed"), check=because(Reason.TABLE_UNSUITABLE)):
        _filled(config, 1).draw(1, seed=1)
