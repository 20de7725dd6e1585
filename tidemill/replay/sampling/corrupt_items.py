"""Filters items whose bytes cannot be decoded: they are logged, counted and removed from their table."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import NotFound, Unavailable
from tidemill.logger import LateLogger
from tidemill.replay.batch import SampledBatch

Delete = Callable[[NDArray[np.uint64]], object]
"""Removes items by key from the table; bounded in time."""

_LOG_EVERY_S = 10.0
_KEYS_LOGGED = 8

_log = LateLogger()


class CorruptItemFilter:
    """Replaces corrupt items in a sample and removes them from the table. Safe to call from several threads.

    Attributes:
        items: How many were found so far.
    """

    def __init__(self, delete: Delete, clock: Callable[[], float]) -> None:
        """Take what removes items from the table, so that they are not sampled again, and monotonic time in seconds."""
        self._delete, self._clock = delete, clock
        self.items = 0
        self._lock = threading.Lock()  # guards the count and the two below
        self._unlogged = 0  # since the last log line
        self._logged_at_s = float("-inf")

    def replace(self, sample: SampledBatch, corrupt: NDArray[np.bool_], why: str) -> SampledBatch | None:
        """Return the sample with its corrupt items replaced by other items of it; None if it has no others.

        The others take turns. Each keeps its key, probability and payload, as if it had been drawn that often.

        Args:
            sample: The sample.
            corrupt: Which of its items are corrupt, [B].
            why: Reason, for the log.
        """
        self._drop(np.unique(sample.keys[corrupt], axis=0), why)
        sound = np.flatnonzero(~corrupt)
        if not len(sound):
            return None
        positions = np.arange(len(corrupt))
        positions[corrupt] = np.resize(sound, np.count_nonzero(corrupt))
        return sample.take(positions)

    def _drop(self, keys: NDArray[np.uint64], why: str) -> None:
        self._report(keys, why)
        try:
            self._delete(keys)
        except (Unavailable, NotFound) as error:  # if they are sampled again, they are found again
            _log.debug("corrupt items not removed", reason=str(error))

    def _report(self, keys: NDArray[np.uint64], why: str) -> None:
        with self._lock:
            self.items += len(keys)
            self._unlogged += len(keys)
            if self._clock() - self._logged_at_s < _LOG_EVERY_S:
                return
            items, self._unlogged, self._logged_at_s = self._unlogged, 0, self._clock()
        named: list[Any] = keys[:_KEYS_LOGGED].tolist()
        _log.error("corrupt items skipped and removed", items=items, keys=named, why=why)
