"""How many threads compute an update on a CPU: all of them, or one where others want the processors too."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import structlog
import torch

_log = structlog.get_logger(__name__)

_TIMED = 5
"""Updates of which the median counts."""
_LEAST_UPDATES, _MOST_UPDATES = 32, 4_096
"""Updates between two trials: twice as many after each trial that changes nothing."""
_SLOWER = 1.5
"""Updates that take so many times as long as at the last trial show that something else has changed."""


class Threads:
    """Computes updates with all threads or with one, whichever is faster, and tries the other now and then.

    The threads of a convolution wait for each other actively. Where another process wants the processors, such as the
    next run of a sweep, the one that is waited for often does not run: with two threads on two processors, updates of
    two runs took ten times as long as with one thread each.
    """

    def __init__(self, most: int, set_threads: Callable[[int], None] = torch.set_num_threads) -> None:
        """Begin with all threads; call from the thread that makes the updates.

        Args:
            most: Threads to choose besides one.
            set_threads: Called with the number for the updates that follow.
        """
        self._set, self._now, self._other = set_threads, most, 1
        self._interval, self._since, self._is_trial = _LEAST_UPDATES, 0, False
        self._times: list[float] = []
        self._expected = self._before = 0.0
        set_threads(most)

    def record(self, seconds: float) -> None:
        """Take the duration of an update that was made with the present number of threads."""
        self._since += 1
        self._times.append(seconds)
        del self._times[:-_TIMED]
        if self._is_trial:
            if self._since > _TIMED:  # the first one starts threads
                self._decide(statistics.median(self._times))
        elif self._since >= self._interval or (self._since >= _LEAST_UPDATES and self._has_slowed()):
            self._before = statistics.median(self._times)
            self._begin(is_trial=True)

    def _has_slowed(self) -> bool:
        return statistics.median(self._times) > _SLOWER * self._expected

    def _begin(self, *, is_trial: bool) -> None:
        self._is_trial, self._since = is_trial, 0
        self._now, self._other = self._other, self._now
        self._set(self._now)

    def _decide(self, median: float) -> None:
        self._expected = min(median, self._before)
        if median < self._before:
            _log.info("updates are faster with another number of threads", threads=self._now, instead_of=self._other)
            self._is_trial, self._since, self._interval = False, 0, _LEAST_UPDATES
        else:
            self._begin(is_trial=False)
            self._interval = min(2 * self._interval, _MOST_UPDATES)
