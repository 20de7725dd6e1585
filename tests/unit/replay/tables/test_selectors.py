"""One test for all selectors: what they pick, in which order, with which probability."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.distribution import chi_square_bound, fits
from tidemill.replay.sampling.sample_decoder import importance_weights
from tidemill.replay.table_config import MAX_PRIORITY, SelectorConfig, SelectorKind
from tidemill.services.replay.selectors.heap import MaxTree
from tidemill.services.replay.selectors.selector import Selector, SelectorPair, make_selector

KINDS = list(SelectorKind)
RANDOM = [SelectorKind.UNIFORM, SelectorKind.PRIORITIZED]
ORDERED = [kind for kind in KINDS if kind not in RANDOM]
EXPONENT = 0.5


def make(kind: SelectorKind, capacity: int = 64) -> Selector:
    """Return an empty selector."""
    return make_selector(SelectorConfig(kind, EXPONENT if kind is SelectorKind.PRIORITIZED else 0.0), capacity)


def order_of(kind: SelectorKind, slots: list[int], priorities: dict[int, float]) -> list[int]:
    """Return slots, listed in order of insertion, in the order in which an ordered selector takes them."""
    match kind:
        case SelectorKind.FIFO:
            return list(slots)
        case SelectorKind.LIFO:
            return slots[::-1]
        case SelectorKind.MAX_HEAP:
            return sorted(slots, key=lambda slot: (-priorities[slot], slot))
        case _:
            return sorted(slots, key=lambda slot: (priorities[slot], slot))


def expected_probabilities(kind: SelectorKind, priorities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the frequencies that a random selector should draw with."""
    weights = priorities**EXPONENT if kind is SelectorKind.PRIORITIZED else np.ones(len(priorities))
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("kind", RANDOM)
def test_drawn_frequencies_match_the_weights(kind: SelectorKind) -> None:
    """200,000 draws pass a chi-square test against weight / total weight, after inserts, updates and removals."""
    rng = np.random.default_rng(5)
    selector = make(kind)
    selector.insert(np.arange(50), np.ones(50))
    selector.update(np.arange(40), np.linspace(0.5, 20, 40))
    selector.remove(np.arange(30, 50))
    slots = np.arange(30)
    expected = expected_probabilities(kind, np.linspace(0.5, 20, 40)[:30])
    np.testing.assert_allclose(selector.weights(slots) / selector.total_weight, expected)
    draws = selector.draw(200_000, rng)
    counts = np.bincount(draws, minlength=64)
    assert counts[30:].sum() == 0
    assert fits(counts[:30], expected)


@pytest.mark.parametrize("kind", RANDOM)
def test_taking_without_replacement_matches_the_first_pick_of_draws(kind: SelectorKind) -> None:
    """Of many times two taken, the second is distributed as a draw after the first has left."""
    rng = np.random.default_rng(6)
    priorities = np.array([1.0, 4.0, 9.0, 16.0])
    selector = make(kind)
    selector.insert(np.arange(4), priorities)
    p = expected_probabilities(kind, priorities)
    pairs = np.array([selector.take(2, rng) for _ in range(5_000)])
    observed = np.zeros((4, 4))
    np.add.at(observed, (pairs[:, 0], pairs[:, 1]), 1)
    expected = np.array([[0 if i == j else p[i] * p[j] / (1 - p[i]) for j in range(4)] for i in range(4)]) * 5_000
    off = ~np.eye(4, dtype=bool)
    assert observed[~off].sum() == 0
    assert ((observed - expected)[off] ** 2 / expected[off]).sum() < chi_square_bound(11)
    assert selector.total_weight == pytest.approx(make_full(kind, priorities).total_weight)


def make_full(kind: SelectorKind, priorities: NDArray[np.float64]) -> Selector:
    """Return a selector that holds one item for each priority."""
    selector = make(kind)
    selector.insert(np.arange(len(priorities)), priorities)
    return selector


@pytest.mark.parametrize("kind", ORDERED)
def test_ordered_selectors_repeat_their_first_item_when_drawn(kind: SelectorKind) -> None:
    """A draw of an ordered selector is its first item, again and again."""
    selector = make_full(kind, np.array([3.0, 1.0, 2.0]))
    first = order_of(kind, [0, 1, 2], {0: 3.0, 1: 1.0, 2: 2.0})[0]
    assert selector.draw(3, np.random.default_rng(0)).tolist() == [first] * 3


@pytest.mark.parametrize("kind", [SelectorKind.MAX_HEAP, SelectorKind.MIN_HEAP])
@pytest.mark.parametrize("count, picks", [(20, 20), (3_000, 0), (9_999, 0)])
def test_heap_takes_many_at_once_and_in_the_order_of_few(
    kind: SelectorKind, count: int, picks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million picks, one by one, hold up all other calls for half a minute. Nothing has left afterwards."""
    rng = np.random.default_rng(8)
    slots, priorities = rng.permutation(100_000)[:5_000], rng.integers(-3, 4, 5_000).astype(np.float64)
    selector = make(kind, 100_000)
    selector.insert(slots, priorities)
    picked: list[int] = []
    argmax = MaxTree.argmax

    def pick(tree: MaxTree) -> int:
        picked.append(argmax(tree))
        return picked[-1]

    monkeypatch.setattr(MaxTree, "argmax", pick)
    order = order_of(kind, slots.tolist(), dict(zip(slots.tolist(), priorities.tolist(), strict=True)))
    for _ in range(2):
        assert selector.take(count, rng).tolist() == order[:count]
    assert len(picked) == 2 * picks


def test_prioritized_never_picks_priority_zero() -> None:
    """Items of priority 0 are not pickable, whatever the exponent, until they get a priority."""
    for exponent in (0.0, 0.5, 1.0):
        selector = make_selector(SelectorConfig(SelectorKind.PRIORITIZED, exponent), 8)
        selector.insert(np.arange(4), np.array([0.0, 2.0, 0.0, 2.0]))
        rng = np.random.default_rng(0)
        assert selector.pickable == 2
        assert set(selector.draw(100, rng).tolist()) == {1, 3}
        assert set(selector.take(4, rng).tolist()) == {1, 3}
        assert selector.can_pick(np.arange(4)).tolist() == [False, True, False, True]


def test_prioritized_survives_priorities_whose_power_overflows() -> None:
    """The largest finite priority with a large exponent leaves the total weight finite."""
    selector = make_selector(SelectorConfig(SelectorKind.PRIORITIZED, 3.0), 8)
    selector.insert(np.arange(2), np.array([1e308, 1e308]))
    assert np.isfinite(selector.total_weight)
    assert set(selector.draw(100, np.random.default_rng(0)).tolist()) == {0, 1}


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 3.0, 30.0])
def test_every_priority_but_0_gives_a_probability_above_0(exponent: float) -> None:
    """The smallest number beside the largest priority allowed has a probability, and so a finite importance weight."""
    selector = make_selector(SelectorConfig(SelectorKind.PRIORITIZED, exponent), 8)
    selector.insert(np.arange(5), np.array([MAX_PRIORITY, 5e-324, 1e-30, 1.0, 0.0]))
    probabilities = selector.weights(np.arange(5)) / selector.total_weight
    assert selector.pickable == 4
    assert (probabilities[:4] > 0).all()
    assert probabilities[4] == 0
    weights = importance_weights(probabilities[:4], 2**31, 1.0)[0]
    assert np.isfinite(weights).all()
    assert weights.max() == 1.0


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_selector_holds_what_was_inserted_and_not_removed(kind: SelectorKind, seed: int) -> None:
    """Through random inserts, updates and removals, `take` of everything gives what is there, in its order."""
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(1, 40))
    selector = make(kind, capacity)
    present: list[int] = []
    priorities: dict[int, float] = {}
    for _ in range(30):
        _change(selector, present, priorities, capacity, rng)
        assert selector.pickable == len(present)
        taken = selector.take(capacity, rng).tolist()
        if kind in RANDOM:
            assert sorted(taken) == sorted(present)
        else:
            assert taken == order_of(kind, present, priorities)
            few = int(rng.integers(0, capacity + 1))
            assert selector.take(few, rng).tolist() == taken[:few]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("capacity", [30, 64, 5000])
def test_selector_of_another_capacity_has_the_same_items(kind: SelectorKind, capacity: int) -> None:
    """With their weights and order; what has left stays away, and new items find room."""
    rng = np.random.default_rng(9)
    slots, priorities = rng.permutation(30), rng.uniform(0.1, 5, 30)
    former = make(kind)
    former.insert(slots, priorities)
    former.remove(slots[10:20])
    selector, left = former.resized(capacity, used=30), np.r_[slots[:10], slots[20:]]
    assert selector.pickable == 20
    assert selector.total_weight == pytest.approx(former.total_weight)
    np.testing.assert_array_equal(selector.weights(left), former.weights(left))
    selector.insert(slots[10:20], priorities[10:20])
    everything = dict(zip(slots.tolist(), priorities.tolist(), strict=True))
    taken = selector.take(64, rng).tolist()
    assert sorted(taken) == list(range(30))
    if kind in ORDERED:
        assert taken == order_of(kind, [*left.tolist(), *slots[10:20].tolist()], everything)
    else:
        assert set(selector.draw(10_000, rng).tolist()) == set(range(30))


@pytest.mark.parametrize("kind", KINDS)
def test_items_at_other_slots_keep_their_order_and_weight(kind: SelectorKind) -> None:
    """As if they had been there from the beginning."""
    slots, priorities = np.array([40, 3, 41, 5, 42]), np.array([2.0, 4.0, 1.0, 3.0, 5.0])
    pair = SelectorPair.make(SelectorConfig(kind), SelectorConfig(SelectorKind.FIFO), 64)
    pair.insert(slots, priorities)
    weights = pair.sampler.weights(slots)
    pair.move(np.array([42, 40, 41]), np.array([0, 1, 2]), np.array([5.0, 2.0, 1.0]))
    places = np.array([1, 3, 2, 5, 0])
    np.testing.assert_array_equal(pair.sampler.weights(places), weights)
    rng = np.random.default_rng(0)
    assert pair.remover.take(5, rng).tolist() == places.tolist()
    taken = pair.sampler.take(5, rng).tolist()
    assert sorted(taken) == sorted(places.tolist())
    if kind in ORDERED:
        assert taken == order_of(kind, places.tolist(), dict(zip(places.tolist(), priorities.tolist(), strict=True)))


def _change(
    selector: Selector, present: list[int], priorities: dict[int, float], capacity: int, rng: np.random.Generator
) -> None:
    free = [slot for slot in range(capacity) if slot not in present]
    match rng.integers(3):
        case 0:
            new = rng.permutation(free)[: rng.integers(0, len(free) + 1)].astype(np.int64)
            values = rng.uniform(0.1, 5, len(new))
            selector.insert(new, values)
            present.extend(new.tolist())
            priorities.update(zip(new.tolist(), values.tolist(), strict=True))
        case 1:
            gone = rng.permutation(present)[: rng.integers(0, len(present) + 1)].astype(np.int64)
            selector.remove(gone)
            for slot in gone.tolist():
                present.remove(slot)
        case _:
            some = rng.permutation(present)[: rng.integers(0, len(present) + 1)].astype(np.int64)
            values = rng.uniform(0.1, 5, len(some))
            selector.update(some, values)
            priorities.update(zip(some.tolist(), values.tolist(), strict=True))
