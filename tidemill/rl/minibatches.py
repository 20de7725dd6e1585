"""The minibatches of an update: parts of its batch, in a fresh order for each pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class Shuffle:
    """Draws the orders.

    Attributes:
        rng: What it draws from, on the CPU, so that devices agree.
    """

    def __init__(self, minibatches: int, seed: int, device: torch.device) -> None:
        """Take how many parts there are, what decides their orders, and where the batch is."""
        self.rng = torch.Generator().manual_seed(seed)
        self._minibatches, self._device = minibatches, device

    def positions(self, count: int) -> Iterator[Tensor]:
        """Yield the positions of each minibatch of one pass over `count` of them, int64, on the device."""
        order = torch.randperm(count, generator=self.rng)
        if self._device.type == "cuda":  # the host would wait for a copy from other memory
            order = order.pin_memory().to(self._device, non_blocking=True)
        yield from order.tensor_split(min(self._minibatches, count))
