"""Epochs over a table: permutations of its slots that need no memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.distribution import fits
from tests.support.naming import because, naming
from tests.support.replay_streams import append, make_chunk, make_config, make_items, make_replay, open_streams
from tidemill.errors import FailedPrecondition, Reason
from tidemill.replay.batch import EpochPlace
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableUpdate
from tidemill.services.replay.tables.epochs import Epochs, _keys, _permuted


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1))
def test_permutation_holds_every_number_once(size: int, seed: int) -> None:
    """Of any size, by any seed."""
    order = _permuted(np.arange(size), size, _keys(EpochPlace(seed)))
    assert sorted(order.tolist()) == list(range(size))


def test_order_is_uniform() -> None:
    """Each of the 24 orders of four comes as often, and so does each place of a number among many."""
    orders = [tuple(_permuted(np.arange(4), 4, _keys(EpochPlace(seed))).tolist()) for seed in range(4800)]
    kinds = sorted(set(orders))
    assert len(kinds) == 24
    assert fits([orders.count(kind) for kind in kinds], [1 / 24] * 24)
    first = [int(_permuted(np.arange(1), 100, _keys(EpochPlace(seed)))[0]) // 10 for seed in range(2000)]
    assert fits([first.count(tenth) for tenth in range(10)], [0.1] * 10)


def test_table_that_is_emptied_begins_the_epoch_again() -> None:
    """Slots that are not used any more are not looked at, and no draw is without items."""
    config = make_config(max_items=20, max_item_steps=1)
    replay = make_replay(config)
    session, table = open_streams(replay), replay.find("t")
    epochs, first = Epochs(EpochPlace(5)), 0

    def fill(chunks: int) -> None:
        nonlocal first
        for _ in range(chunks):
            append(replay, session, [make_chunk(0, 0, first, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])
            first += 4

    fill(3)
    assert len(epochs.take(table.items, 5)) == 5
    replay.reset(table)
    fill(1)
    assert sorted(epochs.take(table.items, 9).tolist()) == [0, 1, 2, 3]
    assert (epochs.place.number, epochs.place.slots, epochs.place.next) == (0, 4, 4)
    table.delete_slots(np.array([0, 1, 3]))
    assert epochs.take(table.items, 9).tolist() == [2]
    assert epochs.place.number == 1


def test_epoch_continues_in_a_table_whose_newest_items_were_deleted_before_it_was_laid_out_again() -> None:
    """No item is drawn twice, though fewer slots are in use than at its beginning. After a reset it begins again."""
    replay = make_replay(make_config(max_items=40, max_item_steps=1))
    session, table = open_streams(replay), replay.find("t")

    def fill(first: int) -> None:
        append(replay, session, [make_chunk(0, 0, first, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])

    def draw(count: int) -> list[int]:
        drawn = table.draw(count, epochs=epochs)
        drawn.release(table.store)
        return [int(key) for key in drawn.batch.keys]

    for step in range(0, 20, 4):
        fill(step)
    epochs = Epochs(EpochPlace(5))
    seen = draw(8)
    table.delete_slots(np.arange(12, 20))
    replay.update_table(table, TableUpdate(max_items=30))
    left = set(table.items.keys(table.items.live()).tolist()) - set(seen)
    assert sorted(draw(20)) == sorted(left)
    assert epochs.place == EpochPlace(5, 0, 20, 20)
    replay.reset(table)
    fill(20)
    epochs = Epochs(EpochPlace(5, 0, 20, 3))
    assert len(draw(9)) == 4
    assert epochs.place == EpochPlace(5, 0, 4, 4)


def test_epoch_continues_between_the_parts_of_a_shrink() -> None:
    """It begins again once, when the table has its new size, not after each part."""
    config = make_config(max_items=40, max_item_steps=1)
    replay = make_replay(config)
    session, table = open_streams(replay), replay.find("t")
    for step in range(0, 20, 4):
        append(replay, session, [make_chunk(0, 0, step, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])
    epochs = Epochs(EpochPlace(5))
    drawn = [epochs.take(table.items, 4)]
    for _ in replay.shrink(table, replace(config, max_items=15)):
        before = epochs.place.next
        drawn.append(epochs.take(table.items, 1, inserts=20))
        assert (epochs.place.number, epochs.place.slots) == (0, 20)
        assert epochs.place.next > before
    assert len(drawn) > 2


def test_table_with_an_order_of_its_own_has_no_epochs() -> None:
    """The contract says so for callers that are not checked by a client."""
    table = make_replay(make_config(sampler=SelectorConfig(SelectorKind.FIFO))).find("t")
    with pytest.raises(
        FailedPrecondition, match=naming("fifo max_times_sampled 0"), check=because(Reason.TABLE_UNSUITABLE)
    ):
        table.check_epochs()


def test_table_that_is_changed_is_drawn_by_epochs_no_more() -> None:
    """A draw after the change is refused: it would use items up behind the sampler's back, and evictions would fail."""
    replay = make_replay(make_config(max_items=8, max_item_steps=1))
    session, table = open_streams(replay), replay.find("t")

    def fill(first: int) -> None:
        append(replay, session, [make_chunk(0, 0, first, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])

    fill(0)
    fill(4)
    epochs = Epochs(EpochPlace(5))
    table.draw(4, epochs=epochs).release(table.store)
    replay.update_table(table, TableUpdate(max_times_sampled=2))
    with pytest.raises(FailedPrecondition, check=because(Reason.TABLE_UNSUITABLE)):
        table.draw(4, epochs=epochs)
    for first in range(8, 24, 4):
        fill(first)
    assert table.size == table.items.count == table.total_weight == 8
    drawn = table.draw(16)
    assert sorted(drawn.batch.keys.tolist()) == sorted(2 * table.items.keys(table.items.lent()).tolist())
