"""Collects new priorities on the device, and copies those of several updates together."""

from __future__ import annotations

import contextlib
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.devices import use_device
from tidemill.errors import FailedPrecondition, TidemillError
from tidemill.params.publisher import StalePublisher
from tidemill.replay.chunk import SMALLEST_PRIORITY
from tidemill.replay.sampling.priorities import PrioritySender
from tidemill.services.learner.divergence import check_finite

Keys = NDArray[np.uint64]

_UPDATES_A_MESSAGE = 16


class PriorityWriter:
    """Hands the priorities of several updates to a sender, which copies them from the device in its thread."""

    def __init__(self, sender: PrioritySender) -> None:
        """Take what sends them; stays the caller's to close."""
        self._sender = sender
        self._collected: list[tuple[Keys, Tensor]] = []

    def offer(self, keys: Keys, priority: Tensor) -> None:
        """Hand over the priorities of one update; never blocks.

        Args:
            keys: Keys of the batch's items, uint64 [B].
            priority: Their new priorities, float32 [B] on any device; not written to afterwards.

        Raises:
            Diverged: Earlier priorities were not finite.
            StalePublisher: A newer learner took over.
        """
        self._collected.append((keys, priority))
        if len(self._collected) >= _UPDATES_A_MESSAGE:
            self.flush()

    def flush(self) -> None:
        """Send everything collected so far; never blocks. Raises what ended the sender."""
        try:
            self._sender.check()
            if self._collected:
                message, self._collected = self._collected, []
                keys = np.concatenate([keys for keys, _ in message])
                self._sender.send(keys, partial(_copied, [priority for _, priority in message]))
        except FailedPrecondition as error:
            raise StalePublisher(str(error)) from error

    def close(self) -> None:
        """Send what is waiting, for a bounded time. May be called twice."""
        with contextlib.suppress(TidemillError):  # what ended the sender; the owner's last call was to raise it
            self.flush()
        self._sender.close()


def _copied(parts: list[Tensor]) -> NDArray[np.float64]:
    """Return priorities as the table takes them. Diverged: they are not finite."""
    use_device(parts[0].device)
    priorities = torch.cat(parts).cpu().numpy().astype(np.float64)
    check_finite([priorities], "priorities")
    return priorities + SMALLEST_PRIORITY
