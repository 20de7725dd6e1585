"""The sum tree: sums, search and drift, for every capacity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.services.replay.selectors.heap import MaxTree
from tidemill.services.replay.selectors.segment_tree import SumTree

CAPACITIES = [1, 2, 3, 15, 16, 17, 100, 255, 256, 257, 1000, 4096, 4097, 65_536, 65_537, 100_003]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_find_agrees_with_a_cumulative_sum_for_every_capacity(capacity: int) -> None:
    """A target falls on the first slot whose cumulative weight exceeds it, be the capacity a power of two or not."""
    weights = np.random.default_rng(capacity).integers(0, 4, capacity).astype(np.float64)  # sums of integers are exact
    weights[-1] = 1.0
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), weights)
    total = int(weights.sum())
    targets = np.unique(np.linspace(0, total - 1, 500).astype(np.int64)).astype(np.float64) + 0.5
    expected = np.searchsorted(np.cumsum(weights), targets, side="right")
    assert tree.total == total
    np.testing.assert_array_equal(tree.find(targets), expected)


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1e6, allow_nan=False, width=32), min_size=1, max_size=300),
    st.integers(0, 2**32 - 1),
)
def test_find_never_returns_a_slot_of_weight_zero(weights: list[float], seed: int) -> None:
    """Whatever the rounding, only slots that weigh something are found, also at both ends of the range."""
    array = np.array(weights)
    if not array.any():
        array[0] = 1.0
    tree = SumTree(len(array))
    tree.set(np.arange(len(array)), array)
    fractions = np.concatenate((np.random.default_rng(seed).random(50), [0.0, np.nextafter(1.0, 0)]))
    assert (array[tree.find(fractions * tree.total)] > 0).all()


@pytest.mark.parametrize("capacity", [5000, 65_537])
def test_leaf_of_weight_zero_at_the_start_of_a_node_is_passed_over(capacity: int) -> None:
    """A target that falls on the very start of a node, of few levels or of many, finds its first leaf with weight."""
    tree = SumTree(capacity)
    tree.set(np.array([3, 16 + 5]), np.array([1.0, 2.0]))
    assert tree.find(np.array([0.0, 1.0])).tolist() == [3, 16 + 5]


def test_target_that_rounding_puts_before_its_node_finds_a_leaf_with_a_weight() -> None:
    """What is left of 0.1 in the second node is 0.1 - (0.30000000000000004 - 0.2) < 0: its first leaf has none."""
    tree = SumTree(5000)
    tree.set(np.array([0, 16 + 5]), np.array([0.1, 0.2]))
    assert tree.find(np.array([0.1])).tolist() == [16 + 5]


def test_target_that_rounding_puts_behind_its_node_finds_a_leaf_with_a_weight() -> None:
    """A node's children, added up in another order, may give less than the node: the target stays below them."""
    rng = np.random.default_rng(4)
    tree = SumTree(5000)
    for _ in range(500):
        weights = np.append(0.0, rng.random(15))
        tree.set(np.arange(16), weights)
        assert weights[tree.find(np.array([np.nextafter(tree.total, 0)]))] > 0


@pytest.mark.parametrize("capacity", [1000, 65_537, 1_000_000])
def test_total_does_not_drift_over_millions_of_random_updates(capacity: int) -> None:
    """After ten million updates over many magnitudes the total is the sum of the leaves up to one rounding."""
    rng = np.random.default_rng(1)
    tree = SumTree(capacity)
    weights = np.zeros(capacity)
    for _ in range(1000):
        slots = rng.integers(0, capacity, 10_000)
        values = 10.0 ** rng.uniform(-8, 8, 10_000)
        tree.set(slots, values)
        weights[slots] = values
    np.testing.assert_allclose(tree.total, weights.sum(), rtol=1e-12)
    tree.set(np.arange(capacity), np.zeros(capacity))
    assert tree.total == 0.0


def test_set_with_a_repeated_slot_keeps_the_last_weight() -> None:
    """The last of repeated slots counts, in the leaf and in the total."""
    tree = SumTree(100)
    tree.set(np.array([7, 7, 7]), np.array([5.0, 1.0, 3.0]))
    assert tree.total == 3.0
    assert tree.weights(np.array([7])).tolist() == [3.0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=600))
def test_greatest_finds_the_maximum_and_of_equals_the_lowest_slot(values: list[int]) -> None:
    """The greatest value's slot is found; emptied slots are passed over."""
    tree = MaxTree(len(values) + 5)
    slots = np.arange(len(values))
    tree.set(slots, np.array(values, dtype=np.float64))
    assert tree.argmax() == int(np.argmax(values))
    top = int(np.argmax(values))
    if len(values) > 1:
        tree.set(np.array([top]), np.array([-np.inf]))
        rest = np.array(values, dtype=np.float64)
        rest[top] = -np.inf
        assert tree.argmax() == int(np.argmax(rest))
