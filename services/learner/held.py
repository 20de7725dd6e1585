"""Training states behind the versions published last: the evaluator's verdict falls on one that training has left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tidemill.services.learner.state_tree import flatten

_MAX_BYTES = 256 * 1024**2
_LEAST, _MOST = 2, 64


@dataclass(frozen=True)
class Held:
    """A learner between two gradient steps, on its device: what a checkpoint is made of."""

    counters: dict[str, int]
    agent: Any
    """A tree of tensors that nothing writes to."""
    rng: dict[str, Any]

    @property
    def learner_steps(self) -> int:
        """Gradient steps behind it."""
        return self.counters["learner_steps"]

    @property
    def size_bytes(self) -> int:
        """Memory of its tensors."""
        return sum(tensor.nbytes for tensor in flatten(self.agent)[1].values())


class HeldStates:
    """As many of the newest states as 256 MiB hold, 2 to 64, besides the one under evaluation.

    The evaluator says a moment after it took a version that it did; until then the newest states wait. Written by
    the training thread alone.
    """

    def __init__(self, hold: Callable[[], Held]) -> None:
        """Begin with none.

        Args:
            hold: Returns a copy of the state of now.
        """
        self._hold = hold
        self._states: dict[int, Held] = {}
        self._capacity = 0

    def keep(self, evaluated: int | None) -> None:
        """Keep the state of now, and drop the oldest that is too many.

        Args:
            evaluated: Gradient steps behind the version under evaluation, whose state stays; None for none.
        """
        held = self._hold()
        self._capacity = self._capacity or max(_LEAST, min(_MOST, _MAX_BYTES // max(held.size_bytes, 1)))
        self._states.pop(held.learner_steps, None)  # so that it is the newest
        self._states[held.learner_steps] = held
        old = [steps for steps in self._states if steps != evaluated]
        for steps in old[: -self._capacity]:
            del self._states[steps]

    def find(self, learner_steps: int) -> Held | None:
        """Return the state after so many gradient steps; None if it is not kept."""
        return self._states.get(learner_steps)


def copied(tree: Any) -> Any:  # noqa: ANN401 - a tree as in `state_tree`
    """Return a copy that shares no memory with the original; its tensors stay on their devices."""
    if isinstance(tree, Tensor):
        return tree.detach().clone(memory_format=torch.preserve_format)
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copied(value) for value in tree)
    return tree
