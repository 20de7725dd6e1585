"""The number of threads for an update follows what else the processors have to do."""

from __future__ import annotations

from collections import Counter

import pytest

from tidemill.services.learner.training.threads import Threads

_QUIET, _BUSY = {1: 0.008, 4: 0.005}, {1: 0.012, 4: 0.200}


class _Updates:
    def __init__(self) -> None:
        self.now = 0
        self.threads = Threads(4, self._set)

    def make(self, count: int, seconds: dict[int, float]) -> Counter[int]:
        """Make updates of these durations by number of threads; return how many were made with each."""
        made: Counter[int] = Counter()
        for _ in range(count):
            made[self.now] += 1
            self.threads.record(seconds[self.now])
        return made

    def _set(self, count: int) -> None:
        self.now = count


def test_all_threads_are_kept_where_they_are_faster() -> None:
    """One thread is tried now and then, ever less often."""
    updates = _Updates()
    assert updates.make(1, _QUIET) == {4: 1}
    assert 0 < updates.make(5_000, _QUIET)[1] < 60
    assert 0 < updates.make(10_000, _QUIET)[1] < 30


@pytest.mark.parametrize("quiet", [0, 100, 20_000])
def test_one_thread_takes_over_where_processors_are_busy(quiet: int) -> None:
    """Within a hundred updates of the time at which they became so, whenever that is; and all threads again later."""
    updates = _Updates()
    updates.make(quiet, _QUIET)
    assert updates.make(100, _BUSY)[4] <= 50
    assert updates.make(10_000, _BUSY)[4] < 60
    updates.make(4_200, _QUIET)
    assert updates.make(5_000, _QUIET)[1] < 60


def test_one_slow_update_begins_no_trial() -> None:
    """Such as one during which a checkpoint was written."""
    updates = _Updates()
    updates.make(3_000, _QUIET)
    updates.threads.record(0.5)
    assert updates.make(200, _QUIET) == {4: 200}
