"""The memory that the batches of one call take on their way to its caller."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.services.replay.memory_budget import MemoryBudget

COPIES = 2
"""How often a batch is in memory while it waits for its caller: as bytes in Python and in gRPC's buffer."""


class BatchRoom:
    """What of a server's memory one call that samples has taken."""

    def __init__(self, budget: MemoryBudget, freed: Callable[[], None]) -> None:
        """Take nothing yet; `freed` is called when room was given back."""
        self._budget, self._freed = budget, freed
        self._taken = 0

    def is_free(self) -> bool:
        """Return whether the call may put together a batch."""
        return self._budget.has_room_for_batch

    @property
    def largest(self) -> int:
        """Bytes of the largest batch there is ever room for; 0 means no limit."""
        return self._budget.share_limit // COPIES

    def take(self, size_bytes: int) -> None:
        """Count a batch that is put together now."""
        self._taken += COPIES * size_bytes
        self._budget.batch_bytes += COPIES * size_bytes

    def release(self) -> None:
        """Give back what was taken: the caller has its batch, or is gone."""
        taken, self._taken = self._taken, 0
        self._budget.batch_bytes -= taken
        if taken:
            self._freed()
