"""How many threads compute an update on a CPU: all of them, or one where others want the processors too."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import structlog
import torch

_log = structlog.get_logger(__name__)

_TIMED = 5
"""Updates of which the median counts."""
_LEAST_UPDATES, _MOST_UPDATES = 16, 4_096
"""Updates between two trials: twice as many after each trial that changes nothing."""
_CHANGED = 1.5
"""Updates so many times slower than at the last trial, or faster, show that other processes have ended or begun."""
_GAIN = 0.9
"""Share of the time at which another number of threads is worth a change: trials of equal ones vary by less."""


class Threads:
    """Computes updates with all threads or with one, whichever is clearly faster, and tries the other now and then.

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
        self._times: list[float] = []
        self._updates, self._interval, self._is_trial = 0, _LEAST_UPDATES, False
        self._expected = self._before = 0.0
        set_threads(most)

    def record(self, seconds: float) -> None:
        """Take the duration of an update that was made with the present number of threads."""
        self._updates += 1
        self._times.append(seconds)
        del self._times[:-_TIMED]
        if self._is_trial:
            if self._updates > _TIMED or self._is_hopeless():  # the first one starts threads
                self._decide(statistics.median(self._times[-self._updates :]))
        elif self._updates >= self._interval or (self._updates >= _LEAST_UPDATES and self._has_changed()):
            self._before = statistics.median(self._times)
            self._begin(is_trial=True)

    def _is_hopeless(self) -> bool:
        """True if both of a trial's first updates were far slower: an update from a rollout may take seconds."""
        return self._updates > 1 and min(self._times[-self._updates :]) > _CHANGED * self._before

    def _has_changed(self) -> bool:
        median = statistics.median(self._times)
        return not self._expected / _CHANGED <= median <= self._expected * _CHANGED

    def _begin(self, *, is_trial: bool) -> None:
        self._is_trial, self._updates = is_trial, 0
        self._now, self._other = self._other, self._now
        self._set(self._now)

    def _decide(self, median: float) -> None:
        if median < _GAIN * self._before:
            _log.info("updates are faster with another number of threads", threads=self._now, instead_of=self._other)
            self._is_trial, self._updates = False, 0
            self._expected, self._interval = median, _LEAST_UPDATES
        else:
            self._begin(is_trial=False)
            self._expected, self._interval = self._before, min(2 * self._interval, _MOST_UPDATES)
