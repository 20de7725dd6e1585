"""Items whose bytes make no sense: left out of training, counted, named, and removed from their table."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from tidemill.errors import NotFound, Unavailable
from tidemill.replay.batch import SampledBatch
from tidemill.services.learner import metrics

Delete = Callable[[NDArray[np.uint64]], object]
"""Removes items by key from the table; bounded in time."""

_LOG_EVERY_S = 10.0
_KEYS_NAMED = 8

_log = structlog.get_logger()


class DamagedItems:
    """Deals with damaged items wherever they are found. Safe to call from several threads."""

    def __init__(self, delete: Delete, clock: Callable[[], float]) -> None:
        """Take what removes items from the table, so that they are not drawn again, and monotonic time in seconds."""
        self._delete, self._clock = delete, clock
        self._lock = threading.Lock()  # guards the two below
        self._unnamed = 0  # since the last line
        self._named_at_s = float("-inf")

    def leave_out(self, sample: SampledBatch, damaged: NDArray[np.bool_], why: str) -> SampledBatch | None:
        """Return a sample of as many items with others of its own in the place of damaged ones; None if it has none.

        The others come in turn. Each keeps its key, probability and payload, as if it had been drawn that often.

        Args:
            sample: The sample.
            damaged: Which of its items are, [B].
            why: What is wrong with them, for the log.
        """
        self._drop(np.unique(sample.keys[damaged], axis=0), why)
        sound = np.flatnonzero(~damaged)
        if not len(sound):
            return None
        places = np.arange(len(damaged))
        places[damaged] = np.resize(sound, np.count_nonzero(damaged))
        return sample.take(places)

    def _drop(self, keys: NDArray[np.uint64], why: str) -> None:
        metrics.DAMAGED_ITEMS.inc(len(keys))
        self._name(keys, why)
        try:
            self._delete(keys)
        except (Unavailable, NotFound) as error:  # drawn once more they are found once more
            _log.debug("damaged items are not removed", reason=str(error))

    def _name(self, keys: NDArray[np.uint64], why: str) -> None:
        with self._lock:
            self._unnamed += len(keys)
            if self._clock() - self._named_at_s < _LOG_EVERY_S:
                return
            items, self._unnamed, self._named_at_s = self._unnamed, 0, self._clock()
        named: list[Any] = keys[:_KEYS_NAMED].tolist()
        _log.error("damaged items are left out and removed", items=items, keys=named, why=why)
