"""Batches of one sampling call that were sent and may still come back: those that their caller has not handed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import InvalidArgument
from tidemill.replay.batch import SampledBatch
from tidemill.services.replay.tables.table import Table


@dataclass(frozen=True, slots=True, eq=False)
class _Lease:
    """A batch that is not settled.

    Attributes:
        keys: Keys of its items, [B].
        ages: Items inserted after each when it was drawn, [B].
        eras: In which era of the table each was drawn, [B].
        counted: Samples that the rate limiter counted for it.
    """

    keys: NDArray[np.uint64]
    ages: NDArray[np.int64]
    eras: NDArray[np.int64]
    counted: int


class Leases:
    """Settles the batches of one call: each has arrived, or its items go back to their table.

    Only tables whose items may be sampled so often have anything to give back. With a caller that does not say which
    batches it handed on, a batch has arrived once it is sent.
    """

    def __init__(
        self, table: Table, changed: Callable[[], None], log_removed: Callable[[], None], *, caller_settles: bool
    ) -> None:
        """Start with nothing.

        Args:
            table: The table that the batches are from.
            changed: Called when items are back in the table.
            log_removed: Called when items may have gone for good: after a kill they would otherwise come again.
            caller_settles: Whether the caller says which batches it handed on.
        """
        self._table, self._changed, self._log_removed = table, changed, log_removed
        self._caller_settles = caller_settles
        self._open: dict[int, _Lease] = {}  # by the number of the batch
        self._sent = 0

    @property
    def newest(self) -> int:
        """Number of the batch that was sent last; 0 if none was."""
        return self._sent

    def sent(self, batch: SampledBatch, eras: NDArray[np.int64], counted: int) -> int:
        """Note a batch, drawn in eras [B], that is about to be sent; return its number in the call, from 1."""
        self._sent += 1
        if self._caller_settles and self._table.config.max_times_sampled and batch.ages is not None:
            self._open[self._sent] = _Lease(batch.keys, batch.ages, eras, counted)
        else:
            self._arrived(batch.keys, eras)
        return self._sent

    def settle(self, number: int, *, returned: bool) -> None:
        """Note that the caller has handed a batch on, or that it gives the batch back.

        Raises:
            InvalidArgument: No batch of that number was sent.
        """
        if not 0 < number <= self._sent:
            raise InvalidArgument(f"a batch has number {number}, must be 1 .. {self._sent}: as many were sent")
        lease = self._open.pop(number, None)
        if lease is None:
            return
        if returned:
            self._give_back(lease)
            self._changed()
        else:
            self._arrived(lease.keys, lease.eras)

    def close(self) -> None:
        """Give back every batch that was not handed on."""
        leases, self._open = self._open, {}
        for lease in leases.values():
            self._give_back(lease)
        if leases:
            self._changed()

    def _arrived(self, keys: NDArray[np.uint64], eras: NDArray[np.int64]) -> None:
        self._table.arrived(keys, eras)
        self._log_removed()

    def _give_back(self, lease: _Lease) -> None:
        self._table.came_back(lease.keys, lease.ages, lease.eras, lease.counted)
