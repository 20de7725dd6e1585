"""The rules that pick items, as the sampler or the remover of a table: one interface, six kinds.

A selector knows items by their slot in the table, an integer below the table's `max_items`. All operations take a
batch of slots; a slot comes at most once in a batch unless the method says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.replay.table_config import SelectorConfig, SelectorKind
from tidemill.services.replay.selectors.heap import PriorityHeap
from tidemill.services.replay.selectors.insertion_order import InsertionOrder
from tidemill.services.replay.selectors.prioritized import Prioritized
from tidemill.services.replay.selectors.uniform import Uniform

Slots = NDArray[np.int64]


class Selector(Protocol):
    """Picks items of a table."""

    @property
    def random(self) -> bool:
        """Whether picks are drawn at random; otherwise they follow an order."""
        ...

    @property
    def total_weight(self) -> float:
        """Sum of the weights that make an item's probability; the number of items where all weigh alike."""
        ...

    @property
    def pickable(self) -> int:
        """Items that can be picked at all."""
        ...

    def can_pick(self, slots: Slots) -> NDArray[np.bool_]:
        """Return a mask [N] of the items that can be picked at all."""
        ...

    def insert(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """Add items [N], in order, with priorities [N]."""
        ...

    def update(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """Change the priorities [N] of items [N]."""
        ...

    def remove(self, slots: Slots) -> None:
        """Remove items [N]."""
        ...

    def resized(self, capacity: int, used: int) -> Selector:
        """Return a selector of another capacity with the same items, whose slots are below it and below `used`."""
        ...

    def weights(self, slots: Slots) -> NDArray[np.float64]:
        """Return the weights [N] of items [N]; with `random`, an item is drawn with weight / total weight."""
        ...

    def draw(self, count: int, rng: np.random.Generator) -> Slots:
        """Pick `count` times, each time from all items, int64 [count]; at least one must be pickable."""
        ...

    def take(self, count: int, rng: np.random.Generator) -> Slots:
        """Return distinct items in the order in which they would be picked if each left after its pick.

        Returns:
            int64 [min(count, pickable)]; nothing is removed.
        """
        ...


def make_selector(config: SelectorConfig, capacity: int) -> Selector:
    """Return an empty selector for slots 0 .. capacity - 1."""
    match config.kind:
        case SelectorKind.UNIFORM:
            return Uniform(capacity)
        case SelectorKind.PRIORITIZED:
            return Prioritized(capacity, config.priority_exponent)
        case SelectorKind.FIFO:
            return InsertionOrder(capacity, newest_first=False)
        case SelectorKind.LIFO:
            return InsertionOrder(capacity, newest_first=True)
        case SelectorKind.MAX_HEAP:
            return PriorityHeap(capacity, sign=1.0)
        case SelectorKind.MIN_HEAP:
            return PriorityHeap(capacity, sign=-1.0)


@dataclass(frozen=True)
class SelectorPair:
    """The sampler and the remover of a table, one object if they follow the same rule.

    Attributes:
        sampler: Picks the items of a batch.
        remover: Picks the items that leave a full table.
        coming: A sampler that is to take the place of the present one once it has all items; changes go to it as well.
    """

    sampler: Selector
    remover: Selector
    coming: Selector | None = None

    @classmethod
    def make(cls, sampler: SelectorConfig, remover: SelectorConfig, capacity: int) -> SelectorPair:
        """Return the empty selectors of a table."""
        first = make_selector(sampler, capacity)
        return cls(first, first if remover == sampler else make_selector(remover, capacity))

    def insert(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """Add items [N] with priorities [N] to both."""
        for selector in self._distinct():
            selector.insert(slots, priorities)

    def put_back(self, slots: Slots, priorities: NDArray[np.float64], oldest_first: Callable[[], Slots]) -> None:
        """Add items [N] that were there before to both; `oldest_first` returns all items that are there then."""
        for selector in self._distinct():
            if isinstance(selector, InsertionOrder):
                selector.refill(oldest_first())
            else:
                selector.insert(slots, priorities)

    def move(self, slots: Slots, places: Slots, priorities: NDArray[np.float64]) -> None:
        """Have items [N] with priorities [N] at other slots [N] in both."""
        for selector in self._distinct():
            if isinstance(selector, InsertionOrder):
                selector.move(slots, places)
            else:
                selector.remove(slots)
                selector.insert(places, priorities)

    def resized(self, capacity: int, used: int) -> SelectorPair:
        """Return selectors of another capacity with the same items, whose slots are below it and below `used`."""
        sampler = self.sampler.resized(capacity, used)
        return SelectorPair(sampler, sampler if self.remover is self.sampler else self.remover.resized(capacity, used))

    def exchanged(self, *, is_remover: bool) -> SelectorPair:
        """Return the selectors with the coming sampler in its place, which may be the remover, too."""
        assert self.coming is not None
        return SelectorPair(self.coming, self.coming if is_remover else self.remover)

    def update(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """Change the priorities [N] of items [N] in both."""
        for selector in self._distinct():
            selector.update(slots, priorities)

    def remove(self, slots: Slots) -> None:
        """Remove items [N] from both."""
        for selector in self._distinct():
            selector.remove(slots)

    def remove_from_remover(self, slots: Slots) -> None:
        """Remove items [N] that the sampler has already let go."""
        for selector in self._distinct()[1:]:
            selector.remove(slots)

    def _distinct(self) -> tuple[Selector, ...]:
        remover = () if self.sampler is self.remover else (self.remover,)
        return (self.sampler, *remover) if self.coming is None else (self.sampler, *remover, self.coming)
