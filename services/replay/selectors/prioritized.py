"""The prioritized selector."""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray

from tidemill.services.replay.selectors.segment_tree import SumTree

_MIN_WEIGHT, _MAX_WEIGHT = 1e-100, 1e100  # the one by the sum of billions of the other is a probability above 0


class Prioritized:
    """Picks with probability p^a / sum p^a (Schaul et al., 2016, section 3.3); see `Selector`.

    An item of priority 0 is never picked, whatever the exponent. Other weights are held to 1e-100 .. 1e100.
    """

    random = True

    def __init__(self, capacity: int, exponent: float) -> None:
        """Create an empty selector for slots 0 .. capacity - 1; `exponent` is a."""
        self._tree = SumTree(capacity)
        self._exponent = exponent
        self._pickable = 0

    @property
    def total_weight(self) -> float:
        """Sum of p^a."""
        return self._tree.total

    @property
    def pickable(self) -> int:
        """The number of items whose weight is not 0."""
        return self._pickable

    def can_pick(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whose weight is not 0."""
        return self._tree.weights(slots) > 0

    def insert(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Add items."""
        self._set(slots, self._weights(priorities))

    def update(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Change priorities."""
        self._set(slots, self._weights(priorities))

    def remove(self, slots: NDArray[np.int64]) -> None:
        """Remove items."""
        self._set(slots, np.zeros(len(slots)))

    def resized(self, capacity: int, used: int) -> Prioritized:
        """Return a selector of another capacity with the same items."""
        new = copy.copy(self)
        new._tree = self._tree.resized(capacity, used)
        return new

    def weights(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return p^a of each."""
        return self._tree.weights(slots)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Pick with replacement."""
        return self._tree.find(rng.random(count) * self._tree.total)

    def take(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Pick without replacement: drawn again, without those already taken, until there are enough."""
        count = min(count, self._pickable)
        taken = np.empty(0, dtype=np.int64)
        weights = np.empty(0)
        while len(taken) < count:
            drawn = self.draw(count - len(taken), rng)
            _, first = np.unique(drawn, return_index=True)
            drawn = drawn[np.sort(first)]
            taken = np.concatenate((taken, drawn))
            weights = np.concatenate((weights, self._tree.weights(drawn)))
            self._tree.set(drawn, np.zeros(len(drawn)))
        self._tree.set(taken, weights)
        return taken

    def _weights(self, priorities: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(over="ignore", under="ignore"):
            weights = np.clip(np.power(priorities, self._exponent), _MIN_WEIGHT, _MAX_WEIGHT)
        return np.where(priorities > 0, weights, 0.0)

    def _set(self, slots: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        self._pickable += int(np.count_nonzero(weights)) - int(np.count_nonzero(self._tree.weights(slots)))
        self._tree.set(slots, weights)
