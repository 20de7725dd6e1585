"""Priority of new items where actors have no critic: the mean priority of the newest updates.

The learner keeps the mean and sends it along with the parameters; whoever acts gives it to each item that it makes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_PUBLISHED = "initial_priority"

_SHARE = 0.01
"""Of one update in the mean."""


class MeanPriority:
    """The learner's side: an exponential mean, 1 before the first update."""

    def __init__(self, device: torch.device) -> None:
        self.mean = torch.ones((), device=device)
        """The mean, [], which a checkpoint keeps."""

    def update(self, priority: Tensor) -> None:
        """Take in the mean priority of one update's items, []."""
        self.mean.lerp_(priority, _SHARE)

    def published(self) -> dict[str, Tensor]:
        """Return a copy of the state, for `NewItemPriority.load`; float64, which is not rounded to float16."""
        return {_PUBLISHED: self.mean.double()}


class NewItemPriority:
    """The acting side: the newest mean that came with parameters, 1 before."""

    def __init__(self) -> None:
        self._value = 1.0

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the mean that came with parameters; parameters of an older learner may lack it."""
        self._value = float(state.get(_PUBLISHED, self._value))

    def of(self, windows: int) -> NDArray[np.float32]:
        """Return the same priority for each of so many windows, [windows]."""
        return np.full(windows, self._value, dtype=np.float32)
