"""Priorities of several updates, copied from the training device together."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.devices import use_device
from tidemill.replay.chunk import SMALLEST_PRIORITY
from tidemill.replay.sampling.priorities import PriorityMessages
from tidemill.services.learner.status.divergence import check_finite


def read_priorities(parts: list[Tensor]) -> NDArray[np.float64]:
    """Return the priorities of updates, each [B] on one device, as the table takes them, float64 [N].

    Raises:
        Diverged: They are not finite.
    """
    use_device(parts[0].device)
    priorities = torch.cat(parts).cpu().numpy().astype(np.float64)
    check_finite([priorities], "priorities")
    return priorities + SMALLEST_PRIORITY


BY_SIXTEEN = PriorityMessages(updates=16, read=read_priorities)
"""A message is worth its cost with so many updates, and their priorities are not old yet."""
