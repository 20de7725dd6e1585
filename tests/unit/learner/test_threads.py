"""The number of threads for an update follows what else the processors have to do."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tidemill.services.learner.training.threads import Threads

_QUIET, _BUSY = {1: 0.008, 4: 0.005}, {1: 0.012, 4: 0.200}
_ROLLOUTS_QUIET, _ROLLOUTS_BUSY = {1: 7.0, 4: 5.0}, {1: 10.0, 4: 50.0}


class _Updates:
    def __init__(self) -> None:
        self.now, self.changes = 0, 0
        self.threads = Threads(4, self._set)

    def make(self, count: int, seconds: dict[int, float], noise: float = 0.05) -> Counter[int]:
        """Make updates of about these durations by number of threads; return how many were made with each."""
        made: Counter[int] = Counter()
        varies = random.Random(count)
        for _ in range(count):
            made[self.now] += 1
            self.threads.record(seconds[self.now] * varies.uniform(1 - noise, 1 + noise))
        return made

    def _set(self, count: int) -> None:
        self.now, self.changes = count, self.changes + 1


def test_all_threads_are_kept_where_they_are_faster() -> None:
    """One thread is tried now and then, ever less often."""
    updates = _Updates()
    assert updates.make(1, _QUIET) == {4: 1}
    assert 0 < updates.make(5_000, _QUIET)[1] < 60
    assert 0 < updates.make(40_000, _QUIET)[1] < 70


def test_trial_ends_as_soon_as_it_is_far_slower() -> None:
    """PPO's updates from images may take seconds each."""
    assert _Updates().make(20, {1: 2.8, 4: 1.5}) == {4: 18, 1: 2}


@pytest.mark.parametrize("quiet", [0, 100, 20_000])
@pytest.mark.parametrize("fast, slow", [(_QUIET, _BUSY), (_ROLLOUTS_QUIET, _ROLLOUTS_BUSY)], ids=["short", "long"])
def test_one_thread_takes_over_where_processors_are_busy(
    fast: dict[int, float], slow: dict[int, float], quiet: int
) -> None:
    """Within 35 updates of the time at which they became so, whenever that is; all threads as soon as they are free."""
    updates = _Updates()
    updates.make(quiet, fast)
    assert updates.make(100, slow)[4] <= 35
    assert updates.make(10_000, slow)[1] > 9_900
    updates.make(4_200, fast)
    assert updates.make(5_000, fast)[4] > 4_900


def test_threads_are_free_again_at_once_where_updates_become_faster() -> None:
    """As they do when the other run ends."""
    updates = _Updates()
    updates.make(20_000, _BUSY)
    assert updates.make(400, _QUIET)[1] < 200


def test_equal_numbers_do_not_take_turns() -> None:
    """Trials become rare, though each of them differs a little."""
    updates = _Updates()
    updates.make(40_000, {1: 0.003, 4: 0.003}, noise=0.2)
    assert updates.changes < 120


def test_one_slow_update_begins_no_trial() -> None:
    """Such as one during which a checkpoint was written."""
    updates = _Updates()
    updates.make(3_000, _QUIET)
    before = updates.changes
    updates.threads.record(0.5)
    updates.make(200, _QUIET)
    assert updates.changes <= before + 2
