"""Step sizes that fall while an agent learns, so that it settles at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from tidemill.rl.exploration import linear
from tidemill.rl.optimizer import Optimizer

_SETTING = "agent.learning_rate_decay_updates"

_log = structlog.get_logger()


def fallen(settings: object, update: int) -> str:
    """Return in words that a rate has fallen to 0 by an update, and what to do; empty if it has not.

    Args:
        settings: Of an agent, which may or may not know a decay.
        update: How many others came before.
    """
    updates = getattr(settings, "learning_rate_decay_updates", 0)
    if not 0 < updates <= update or getattr(settings, "learning_rate_final", 0.0) > 0:
        return ""
    return f"the learning rate is 0 since update {updates:,}: nothing is learned unless {_SETTING} is raised"


class LearningRateDecay:
    """Lets the step size of each optimizer fall linearly from where it is."""

    def __init__(self, optimizers: Iterable[Optimizer], updates: int, final: float = 0.0) -> None:
        """Note the step sizes; they reach `final` after `updates` updates, or never change if `updates` is 0."""
        self._initial = [(optimizer, optimizer.learning_rate) for optimizer in optimizers]
        self._updates, self._final = updates, final
        self._said = False

    def at(self, update: int) -> None:
        """Set the step sizes for the update that `update` others came before."""
        if self._updates:
            for optimizer, initial in self._initial:
                optimizer.learning_rate = linear(update, initial, self._final, self._updates)
            if update >= self._updates and self._final == 0 and not self._said:
                self._said = True
                _log.warning(
                    f"the learning rate is 0: nothing is learned from here on unless {_SETTING} is raised",
                    update=update,
                )
