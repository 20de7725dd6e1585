"""What a loss says of each item of a batch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ItemLoss(NamedTuple):
    """The loss of each item, before importance weights, and how surprising the item was.

    Attributes:
        loss: float32 [B].
        priority: Not negative, without a gradient, float32 [B].
    """

    loss: Tensor
    priority: Tensor
