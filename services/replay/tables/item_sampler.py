"""Picks the items of a batch, each at most as often as a table allows, and counts how often."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import FailedPrecondition
from tidemill.services.replay.selectors.selector import Selector
from tidemill.services.replay.selectors.uniform import Uniform
from tidemill.services.replay.tables.items import Items

Ints = NDArray[np.int64]


class ItemSampler:
    """Lets a selector pick, and counts how often each item was picked."""

    def __init__(self, items: Items, selector: Selector, max_times_sampled: int, rng: np.random.Generator) -> None:
        """Pick from items; `max_times_sampled` of 0 means as often as one likes."""
        self._items, self._selector, self._limit, self._rng = items, selector, max_times_sampled, rng
        self.left = 0  # samples that the items may still be given; counted only with a limit

    def add(self, slots: Ints) -> None:
        """Count the samples that items [N], new or with a new priority, may be given."""
        self.left += self._draws_of(slots)

    def discard(self, slots: Ints) -> None:
        """Stop counting those of items [N]."""
        self.left -= self._draws_of(slots)

    def sample(self, count: int, without_replacement: bool) -> tuple[Ints, NDArray[np.float64], Ints]:
        """Return slots [count], their probabilities, and which of them this used up, gone from the selector."""
        selector, total_weight = self._selector, self._selector.total_weight
        slots, weights, exhausted = _NO_SLOTS, np.empty(0), _NO_SLOTS
        while len(slots) < count:  # again only for items that were picked more often than they may
            picked = self._pick_some(count - len(slots), without_replacement)
            slots = np.concatenate((slots, picked))
            weights = np.concatenate((weights, selector.weights(picked)))
            exhausted = np.concatenate((exhausted, self._use(picked)))
        return slots, weights / total_weight if selector.random else np.ones(count), exhausted

    def sample_seeded(self, count: int, seed: int) -> tuple[Ints, NDArray[np.float64]]:
        """Return slots [count], drawn with replacement, and their probabilities.

        They depend on the seed, the slots in use and their priorities alone, not on what happened before.

        Raises:
            FailedPrecondition: The selector does not draw at random, or items may be sampled only so often.
        """
        selector = self._selector
        if not selector.random or self._limit:
            raise FailedPrecondition(
                "seed is set, but the table picks in an order or has a max_times_sampled: draws depend on earlier ones"
            )
        rng = np.random.default_rng(seed)
        if isinstance(selector, Uniform):  # which has the slots in an order that depends on removals
            slots = self._items.pick(rng.integers(self._items.count, size=count))
        else:
            slots = selector.draw(count, rng)
        self._use(slots)
        return slots, selector.weights(slots) / selector.total_weight

    def _pick_some(self, count: int, without_replacement: bool) -> Ints:
        selector, limit = self._selector, self._limit
        if without_replacement:
            return selector.take(count, self._rng)
        if not limit:
            return selector.draw(count, self._rng)
        if selector.random:
            slots = selector.draw(count, self._rng)
            return slots[self._items.times_sampled[slots] + _occurrences(slots) < limit]
        slots = selector.take(count, self._rng)
        return np.repeat(slots, limit - self._items.times_sampled[slots].astype(np.int64))[:count]

    def _use(self, slots: Ints) -> Ints:
        """Count the samples of items; return those that may not be sampled again, gone from the selector."""
        times = self._items.times_sampled
        np.add.at(times, slots, _ONE)
        if not self._limit:
            return _NO_SLOTS
        self.left -= len(slots)
        exhausted = np.unique(slots[times[slots] >= self._limit])
        self._selector.remove(exhausted)
        return exhausted

    def _draws_of(self, slots: Ints) -> int:
        limit = self._limit
        if not limit:
            return 0
        slots = slots[self._selector.can_pick(slots)]
        return limit * len(slots) - int(self._items.times_sampled[slots].sum())


_NO_SLOTS: Ints = np.empty(0, dtype=np.int64)
_ONE = np.uint32(1)  # of the counts' own type: another one would be cast slot by slot, 20 times as slow


def _occurrences(values: Ints) -> Ints:
    """Return for each entry of [N] how many equal ones come before it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    positions = np.arange(len(values))
    starts = np.maximum.accumulate(np.where(np.r_[True, ordered[1:] != ordered[:-1]], positions, 0))
    counts = np.empty_like(values)
    counts[order] = positions - starts
    return counts
