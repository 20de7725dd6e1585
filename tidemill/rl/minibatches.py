"""The minibatches of an update: parts of its batch, in a fresh order for each pass."""

from __future__ import annotations

import torch
from torch import Tensor

ORDERS = "orders"
"""Name, among the columns of a batch, of what `Shuffle.orders` returned for it."""


class Shuffle:
    """Draws the orders.

    Attributes:
        rng: What it draws from, on the CPU, so that devices agree.
    """

    def __init__(self, minibatches: int, seed: int, device: torch.device) -> None:
        """Take how many parts there are, what decides their orders, and where the batch is."""
        self.rng = torch.Generator().manual_seed(seed)
        self._minibatches, self._device = minibatches, device

    def orders(self, count: int, passes: int) -> Tensor:
        """Return the positions of a batch of `count` in a fresh order for each pass, int64 [passes, count].

        They are on the device. All passes are drawn at once, so that an update can be recorded as a whole.
        """
        orders = torch.stack([torch.randperm(count, generator=self.rng) for _ in range(passes)])
        if self._device.type == "cuda":  # the host would wait for a copy from other memory
            orders = orders.pin_memory().to(self._device, non_blocking=True)
        return orders

    def minibatches(self, order: Tensor) -> tuple[Tensor, ...]:
        """Return the positions of each minibatch of one pass, given its order, [count]."""
        return order.tensor_split(min(self._minibatches, len(order)))
