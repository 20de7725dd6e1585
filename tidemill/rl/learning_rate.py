"""Step sizes that fall while an agent learns, so that it settles at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.rl.exploration import linear
from tidemill.rl.optimizer import Optimizer


class LearningRateDecay:
    """Lets the step size of each optimizer fall linearly from where it is."""

    def __init__(self, optimizers: Iterable[Optimizer], updates: int, final: float = 0.0) -> None:
        """Note the step sizes; they reach `final` after `updates` updates, or never change if `updates` is 0."""
        self._initial = [(optimizer, optimizer.learning_rate) for optimizer in optimizers]
        self._updates, self._final = updates, final

    def at(self, update: int) -> None:
        """Set the step sizes for the update that `update` others came before."""
        if self._updates:
            for optimizer, initial in self._initial:
                optimizer.learning_rate = linear(update, initial, self._final, self._updates)
