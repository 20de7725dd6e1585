"""How old items are and how often they were sampled, as batches say it to those who ask."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest

from tests.support.numbered_items import TABLE, UNIFORM, write
from tests.support.replay_service import LocalServer, local_server
from tests.support.waiting import WAIT_S
from tidemill.replay import (
    HostRows,
    ReplayDataset,
    ReplaySampler,
    SelectorConfig,
    SelectorKind,
    TableConfig,
)
from tidemill.replay.table_config import shard_config


def test_age_is_what_was_inserted_since_and_each_sample_counts(server: LocalServer) -> None:
    """Of ten items number n has 9 - n younger ones; an item's count is that of all samples until then."""
    write(server.address, 10)
    seen: Counter[int] = Counter()
    with ReplayDataset(server.address, TABLE, 8, timeout_s=WAIT_S, prefetch=1, item_counts=True) as dataset:
        for _ in range(20):
            batch = next(dataset)
            numbers = batch["number"][:, 0].tolist()
            seen.update(numbers)
            assert batch.ages is not None
            assert batch.times_sampled is not None
            assert batch.ages.tolist() == [9 - number for number in numbers]
            assert batch.times_sampled.tolist() == [seen[number] for number in numbers]


def test_batches_of_several_tables_have_each_ones_own(server: LocalServer) -> None:
    """The ages of a batch that is mixed of two tables are counted in each."""
    other = TableConfig("other", TABLE.signature, UNIFORM, max_items=100, max_item_steps=1)
    write(server.address, 10)
    write(server.address, 4, other)
    mixed = {TABLE: 0.5, other: 0.5}
    with ReplayDataset(server.address, mixed, 16, timeout_s=WAIT_S, prefetch=1, item_counts=True) as dataset:
        batch = next(dataset)
    newest = np.where(batch.tables == 0, 9, 3)
    assert batch.ages is not None
    np.testing.assert_array_equal(batch.ages, newest - batch["number"][:, 0])
    assert batch.table_items.tolist() == (newest + 1).tolist()


def test_priorities_are_those_of_the_draw(server: LocalServer) -> None:
    """The first ones, and then those that were set; of several servers each item has its own."""
    ranked = TableConfig("t", TABLE.signature, SelectorConfig(SelectorKind.PRIORITIZED, 1.0), 100, 1)
    write(server.address, 4, ranked)
    with ReplayDataset(server.address, ranked, 8, timeout_s=WAIT_S, prefetch=1, item_counts=True) as dataset:
        batch = next(dataset)
        assert batch.priorities is not None
        assert batch.priorities.tolist() == [1.0] * 8
        dataset.update_priorities(batch, batch["number"][:, 0] + 2.0)
        next(dataset)  # drawn before
        batch = next(dataset)
        assert batch.priorities is not None
        weights = batch.probabilities * batch.priorities.sum() / batch.probabilities.sum()
        np.testing.assert_allclose(weights, batch.priorities)
        assert set(batch.priorities.tolist()) <= {1.0, 2.0, 3.0, 4.0, 5.0}
        assert batch.priorities.max() > 1.0


def test_shards_count_for_themselves() -> None:
    """Of several servers each item has the age and the count that its own server has of it."""
    with local_server() as first, local_server() as second:
        addresses = [first.address, second.address]
        for address in addresses:
            write(address, 10, shard_config(TABLE, 2))
        with ReplaySampler(addresses, TABLE, 16, max_in_flight_batches=1, item_counts=True) as sampler:
            for _ in range(3):
                batch = sampler.take(WAIT_S)
                assert batch is not None
                assert batch.ages is not None
                assert batch.times_sampled is not None
                counts = [
                    server.replay.find("t").items.find(keys)
                    for server, keys in ((first, batch.keys[:, 0]), (second, batch.keys[:, 0]))
                ]
                assert all(found.any() for _, found in counts)
                for server in (first, second):
                    items = server.replay.find("t").items
                    slots, found = items.find(batch.keys[:, 0])
                    assert batch.ages[found].tolist() == (9 - items.numbers(slots)).tolist()
                assert (batch.times_sampled >= 1).all()


@pytest.mark.parametrize("asked", [False, True])
def test_counts_come_to_those_who_ask(server: LocalServer, asked: bool) -> None:
    """Whoever does not ask gets the bytes that there always were."""
    write(server.address, 10)
    with ReplaySampler([server.address], TABLE, 8, max_in_flight_batches=1, item_counts=asked) as sampler:
        batch = sampler.take(WAIT_S)
    assert batch is not None
    assert (batch.ages is not None, batch.times_sampled is not None) == (asked, asked)
    taken = batch.take(np.array([3, 3]))
    assert (taken.ages is not None, taken.priorities is not None) == (asked, asked)


@pytest.mark.parametrize("mirror_mib", [0, 1])
def test_every_item_says_how_long_it_was_in_the_table_and_the_batch_when_it_came(
    server: LocalServer, mirror_mib: int
) -> None:
    """Unasked. The time in the table is within what passed since before the first append, and times are in order."""
    began = time.monotonic()
    write(server.address, 10)
    with ReplayDataset(
        server.address,
        TABLE,
        8,
        timeout_s=WAIT_S,
        batches_per_sample=2,
        keep=HostRows(mirror_mib) if mirror_mib else None,
    ) as dataset:
        batch = next(dataset)
        now = time.monotonic()
    assert batch.table_s is not None
    assert batch.table_s.shape == (8,)
    assert np.all((batch.table_s >= 0) & (batch.table_s <= now - began + 0.02))
    assert began <= batch.received_at <= batch.taken_at <= batch.decoded_at <= now
