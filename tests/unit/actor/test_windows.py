"""Which windows an actor makes items of: counted by hand, and against a slow model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tidemill.replay.writing.rollout_writer import Windows, WindowTracker
from tidemill.types import WindowSpec

Array = NDArray[np.generic]


def _row(
    num_envs: int = 1, *, is_first: bool = False, is_reset_step: bool = False, reward: float = 0.0
) -> dict[str, Array]:
    return {
        "reward": np.full(num_envs, reward, np.float32),
        "terminated": np.zeros(num_envs, np.bool_),
        "truncated": np.zeros(num_envs, np.bool_),
        "is_first": np.full(num_envs, is_first),
        "is_reset_step": np.full(num_envs, is_reset_step),
    }


def _oldest_reward(steps: Mapping[str, Array]) -> NDArray[np.float32]:
    reward: NDArray[np.float32] = steps["reward"][0].astype(np.float32)
    return reward


def _completed(
    tracker: WindowTracker, row: Mapping[str, Array], recurrent_state: NDArray[np.float32] | None = None
) -> Windows:
    """Return the windows that one more row completes."""
    tracker.add(row, recurrent_state)
    return tracker.take()


def test_window_is_complete_with_its_bootstrap_row() -> None:
    """With 3 steps the window of step 0 comes with row 3, and each later row completes one."""
    tracker = WindowTracker(WindowSpec(history=0, steps=3), 2, 1, _oldest_reward)
    counts = [len(_completed(tracker, _row(2, is_first=t == 0)).env_index) for t in range(6)]
    assert counts == [0, 0, 0, 2, 2, 2]


def test_history_is_shorter_only_at_the_start_of_a_stream() -> None:
    """A stack of 4 over 1 step covers 2, 3, 4 and then always 5 steps."""
    tracker = WindowTracker(WindowSpec(history=3, steps=1), 1, 1, _oldest_reward)
    lengths = [_completed(tracker, _row(is_first=t == 0)).length.tolist() for t in range(7)]
    assert lengths == [[], [2], [3], [4], [5], [5], [5]]


def test_stream_that_starts_within_an_episode_waits_for_its_whole_history() -> None:
    """Without a first observation at step 0, windows start at step `history`."""
    tracker = WindowTracker(WindowSpec(history=3, steps=1), 1, 1, _oldest_reward)
    lengths = [_completed(tracker, _row()).length.tolist() for _ in range(6)]
    assert lengths == [[], [], [], [], [5], [5]]


def test_no_window_starts_at_a_final_row() -> None:
    """The row whose action was ignored is never an action step, but windows before it cover it."""
    tracker = WindowTracker(WindowSpec(history=0, steps=2), 1, 1, _oldest_reward)
    rows = [_row(is_first=True), _row(), _row(is_reset_step=True), _row(is_first=True), _row(), _row()]
    counts = [len(_completed(tracker, row).env_index) for row in rows]
    assert counts == [0, 0, 1, 1, 0, 1]  # starts at 0, 1, (2 is final), 3


def test_initial_priority_is_asked_of_the_rows_of_its_window() -> None:
    """The oldest step handed to the policy is the step the window starts at."""
    tracker = WindowTracker(WindowSpec(history=0, steps=2), 1, 1, _oldest_reward)
    priorities = [_completed(tracker, _row(reward=float(t), is_first=t == 0)).priority.tolist() for t in range(5)]
    assert priorities == [[], [], [0.0], [1.0], [2.0]]


def test_initial_priority_is_given_all_steps_of_its_window_in_order() -> None:
    """Of every environment: from the step a window starts at to the one it bootstraps from."""
    asked: list[list[float]] = []

    def keep(steps: Mapping[str, Array]) -> NDArray[np.float32]:
        asked.extend(steps["reward"].T.tolist())
        return np.ones(steps["reward"].shape[1], np.float32)

    tracker = WindowTracker(WindowSpec(history=1, steps=2), 2, 3, keep)
    for t in range(6):
        row = _row(2, is_first=t == 0)
        row["reward"] = np.array([t, 10 * t], np.float32)
        tracker.add(row)
        if t % 3 == 2:
            tracker.take()
    assert asked == [
        [0, 1, 2], [0, 10, 20],
        [1, 2, 3], [10, 20, 30], [2, 3, 4], [20, 30, 40], [3, 4, 5], [30, 40, 50],
    ]  # fmt: skip


def test_stride_keeps_every_nth_start() -> None:
    """With a stride of 2, windows start at steps 0, 2, 4."""
    tracker = WindowTracker(WindowSpec(history=0, steps=4, stride=2), 1, 1, _oldest_reward)
    complete = [t for t in range(10) if len(_completed(tracker, _row(is_first=t == 0)).env_index)]
    assert complete == [4, 6, 8]


def test_window_carries_the_recurrent_state_at_its_start() -> None:
    """With a stride of 2 and windows of 4 steps, rows 4, 6 and 8 complete those with the state of 0, 2 and 4."""
    tracker = WindowTracker(WindowSpec(history=0, steps=4, stride=2), 2, 1, _oldest_reward)
    recurrent_states = [np.array([[t, 10 * t], [-t, 0]], np.float32) for t in range(9)]
    found = [
        _completed(tracker, _row(2, is_first=t == 0), recurrent_state).recurrent_state.tolist()
        for t, recurrent_state in enumerate(recurrent_states)
    ]
    assert [recurrent_state for recurrent_state in found if recurrent_state] == [
        recurrent_states[t].tolist() for t in (0, 2, 4)
    ]
    tracker.restart()
    anew = [_completed(tracker, _row(2), np.full((2, 1), t, np.float32)).recurrent_state.tolist() for t in range(5)]
    assert anew == [[], [], [], [], [[0.0], [0.0]]]


def test_restart_begins_before_step_0() -> None:
    """After a restart nothing of the old stream completes a window."""
    tracker = WindowTracker(WindowSpec(history=0, steps=2), 1, 1, _oldest_reward)
    for t in range(4):
        _completed(tracker, _row(is_first=t == 0))
    tracker.restart()
    counts = [len(_completed(tracker, _row()).env_index) for _ in range(4)]
    assert counts == [0, 0, 1, 1]


@given(
    st.integers(0, 3),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 7),
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40),
)
def test_windows_equal_those_of_a_slow_model(
    history: int, steps: int, stride: int, chunk: int, flags: list[tuple[bool, bool]]
) -> None:
    """For any rows and chunks the tracker names exactly the windows that a look at the whole stream gives."""
    tracker = WindowTracker(WindowSpec(history, steps, stride), 1, chunk, _oldest_reward)
    named = []
    for first in range(0, len(flags), chunk):
        for t, (is_first, is_reset_step) in enumerate(flags[first : first + chunk], first):
            recurrent_state = np.full((1, 1), t, np.float32)
            tracker.add(_row(is_first=is_first, is_reset_step=is_reset_step, reward=t), recurrent_state)
        windows = tracker.take()
        rows = zip(windows.last_row, windows.length, windows.priority, windows.recurrent_state.ravel(), strict=True)
        named += [
            (first + int(row), int(length), int(priority), int(recurrent_state))
            for row, length, priority, recurrent_state in rows
        ]
    expected = [
        (start + steps, min(history, start) + steps + 1, start, start)
        for start in range(0, len(flags) - steps, stride)
        if not flags[start][1] and (flags[0][0] or start >= history)
    ]
    assert named == expected


@pytest.mark.parametrize("history", [0, 3])
def test_environments_are_judged_each_by_its_own_rows(history: int) -> None:
    """One environment's final observation step does not cost another its window."""
    tracker = WindowTracker(WindowSpec(history, 1), 2, 1, _oldest_reward)
    _completed(tracker, _row(2, is_first=True))
    row = _row(2)
    row["is_reset_step"] = np.array([True, False])
    assert _completed(tracker, row).env_index.tolist() == [0, 1]
    assert _completed(tracker, _row(2)).env_index.tolist() == [1]
