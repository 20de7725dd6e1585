"""Tables as Reverb publishes them: which item is sampled, which is removed, and what becomes of keys.

Sources: the docstrings of reverb/server.py, reverb/client.py, reverb/rate_limiters.py and reverb/cc/selectors/*.h, and
"Reverb: A Framework for Experience Replay" (Cassirer et al., 2021).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.integration.conformance.adapter import HELD_S, Spec, Start, TimedOut, drained, eventually, filled, values

PRIORITIES = [3.0, 1.0, 5.0, 2.0, 4.0]


@pytest.mark.parametrize(
    "sampler, order",
    [
        ("fifo", [0, 1, 2, 3, 4]),
        ("lifo", [4, 3, 2, 1, 0]),
        ("max_heap", [2, 4, 0, 3, 1]),
        ("min_heap", [1, 3, 0, 4, 2]),
    ],
)
def test_deterministic_sampler_has_its_order(start: Start, sampler: str, order: list[int]) -> None:
    """It gives the same item, with probability 1, until that leaves; then the next."""
    server = filled(start(Spec(sampler=sampler)), PRIORITIES)
    samples = server.sample(3)
    assert values(samples) == order[:1] * 3
    assert [sample.probability for sample in samples] == [1.0] * 3
    assert drained(server, 5) == order


@pytest.mark.parametrize("sampler, order", [("max_heap", [2, 0, 3, 1]), ("min_heap", [1, 3, 0, 2])])
def test_heap_takes_priorities_below_0(start: Start, sampler: str, order: list[int]) -> None:
    """As first and as new priorities, in one order with 0 and those above it."""
    server = filled(start(Spec(sampler=sampler)), [-1.0, -5.0, 2.0, -2.0])
    assert drained(server, 4) == order
    server = filled(start(Spec(sampler=sampler)), [1.0, 1.0])
    (first,) = server.sample()
    server.update(first.key, -7.0 if sampler == "max_heap" else 7.0)
    assert values(server.sample()) == [1 - first.value]


@pytest.mark.parametrize("sampler, exponent", [("uniform", 1.0), ("prioritized", 1.0), ("prioritized", 0.5)])
def test_random_sampler_has_its_distribution(start: Start, sampler: str, exponent: float) -> None:
    """Each sample says the probability that its item has; the counts are as likely as those probabilities say."""
    server = filled(start(Spec(sampler=sampler, exponent=exponent)), PRIORITIES)
    weights = np.array(PRIORITIES) ** (exponent if sampler == "prioritized" else 0.0)
    expected = weights / weights.sum()
    samples = server.sample(1000)
    for sample in samples:
        assert sample.probability == pytest.approx(expected[sample.value])
    counts = Counter(values(samples))
    chi_square = sum((counts[i] - 1000 * p) ** 2 / (1000 * p) for i, p in enumerate(expected))
    assert chi_square < 33.4  # of 4 degrees of freedom, exceeded once in a million


def test_item_of_priority_0_is_not_sampled_by_priority(start: Start) -> None:
    """Whatever the exponent, as long as another has more."""
    server = filled(start(Spec(sampler="prioritized", exponent=0.0)), [0.0, 1.0, 0.0])
    assert set(values(server.sample(50))) == {1}


@pytest.mark.parametrize(
    "remover, stays",
    [("fifo", {2, 3, 4}), ("max_heap", {1, 3, 4}), ("min_heap", {0, 2, 4})],
)
def test_full_table_removes_by_its_remover(start: Start, remover: str, stays: set[int]) -> None:
    """Of five items in a table for three the remover takes two; none of them is the one that comes."""
    priorities = {"max_heap": [9.0, 1.0, 8.0, 2.0, 3.0], "min_heap": [5.0, 1.0, 4.0, 2.0, 3.0]}.get(remover, [1.0] * 5)
    server = start(Spec(remover=remover, max_size=3))
    for value, priority in enumerate(priorities):
        server.insert(value, priority)
        eventually(server, min(value + 1, 3))
    assert set(drained(server, 3)) == stays


def test_item_leaves_once_it_was_sampled_often_enough(start: Start) -> None:
    """The count comes with each sample; after the last one the next item is first."""
    server = filled(start(Spec(max_times_sampled=2)), [1.0] * 3)
    samples = server.sample(5)
    assert values(samples) == [0, 0, 1, 1, 2]
    assert [sample.times_sampled for sample in samples] == [1, 2, 1, 2, 1]
    assert server.size() == 1
    assert values(server.sample()) == [2]
    with pytest.raises(TimedOut):
        server.sample(timeout_s=HELD_S)


def test_new_priority_moves_an_item(start: Start) -> None:
    """In sampler and remover alike; one of a key that is not there is ignored."""
    server = filled(start(Spec(sampler="max_heap", remover="min_heap", max_size=3)), [3.0, 2.0, 1.0])
    (first,) = server.sample()
    server.update(first.key, 0.5)
    server.update(12345, 9.0)
    assert values(server.sample()) == [1]
    server.insert(3, 1.5)
    eventually(server, 3)
    assert drained(server, 3) == [1, 3, 2]


def test_deleted_item_is_not_sampled_again(start: Start) -> None:
    """A key that is not there is ignored, whether it was once or never."""
    server = filled(start(Spec()), [1.0] * 3)
    (first,) = server.sample()
    for _ in range(2):
        server.delete(first.key)
        assert server.size() == 2
    server.delete(12345)
    assert drained(server, 2) == [1, 2]


def test_key_of_an_item_that_left_names_no_other(start: Start) -> None:
    """In a table of one item each insert removes the one before; its key changes and deletes nothing any more."""
    server = filled(start(Spec(sampler="max_heap", max_size=1)), [1.0])
    (first,) = server.sample()
    server.insert(1)
    eventually(server, 1)
    server.delete(first.key)
    assert values(server.sample()) == [1]


def test_trajectory_has_each_columns_own_length(start: Start) -> None:
    """Of three steps the item has three values and the newest two actions."""
    server = start(Spec())
    steps = [{"value": i, "action": 10 + i} for i in range(4)]
    server.insert_trajectory(steps, {"value": 3, "action": 2})
    found = server.sample_trajectory()
    assert {name: column.tolist() for name, column in found.items()} == {"value": [1, 2, 3], "action": [12, 13]}


def test_sample_of_an_empty_table_waits_and_times_out(start: Start) -> None:
    """It ends when its time is over, and the table works afterwards."""
    server = start(Spec())
    with pytest.raises(TimedOut):
        server.sample(timeout_s=HELD_S)
    filled(server, [1.0])
    assert values(server.sample()) == [0]


def test_reset_table_begins_again(start: Start) -> None:
    """It is empty, and takes and gives items as a new one."""
    server = filled(start(Spec()), [1.0] * 3)
    server.reset()
    assert server.size() == 0
    with pytest.raises(TimedOut):
        server.sample(timeout_s=HELD_S)
    filled(server, [1.0])
    assert values(server.sample()) == [0]
