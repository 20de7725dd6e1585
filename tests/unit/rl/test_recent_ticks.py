"""The ring of an actor's last rows."""

from __future__ import annotations

import numpy as np

from tidemill.rl.recent_ticks import RecentTicks


def test_window_is_the_newest_rows_oldest_first() -> None:
    """Of rows 0 .. 4, a window of three holds 2, 3, 4 of every environment."""
    ticks = RecentTicks(length=3, num_envs=2)
    for row in range(5):
        ticks.push({"reward": np.array([row, 10 + row], dtype=np.float32)})
    np.testing.assert_array_equal(ticks.window()["reward"], [[2, 12], [3, 13], [4, 14]])


def test_environment_that_wrote_no_row_keeps_its_window() -> None:
    """Only the environments named move on, and completeness is counted for each."""
    ticks = RecentTicks(length=2, num_envs=2)
    ticks.push({"reward": np.array([1, 5], dtype=np.float32)})
    ticks.push({"reward": np.array([2, 6], dtype=np.float32)}, written=np.array([False, True]))
    assert ticks.complete.tolist() == [False, True]
    ticks.push({"reward": np.array([3, 7], dtype=np.float32)}, written=np.array([True, False]))
    assert ticks.complete.tolist() == [True, True]
    np.testing.assert_array_equal(ticks.window()["reward"], [[1, 5], [3, 6]])
