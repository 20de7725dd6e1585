"""Which windows of the streams become items, and with what first priority."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.rl.recent_ticks import RecentTicks
from tidemill.types import WindowSpec

Array = NDArray[np.generic]

FirstPriority = Callable[[Mapping[str, Array]], NDArray[np.float32]]
"""`Policy.first_priority`: ticks, each [steps + 1, N], to priorities [N]."""


@dataclass(frozen=True)
class Windows:
    """The windows that one tick completed; lists have one entry a window.

    Attributes:
        env_index: Whose stream it is, int64 [K].
        length: Steps from the first of its history to its last, int64 [K].
        priority: First priority, float64 [K].
        memory: What the policy remembered when it first acted in the window, float32 [K, M]; M may be 0.
    """

    env_index: NDArray[np.int64]
    length: NDArray[np.int64]
    priority: NDArray[np.float64]
    memory: NDArray[np.float32]


class WindowTracker:
    """Watches the rows of N streams in step and names the windows that each row completes.

    A window that starts acting at step s is complete with step s + `window.steps`. None starts at a final
    row, whose action the environment ignored. A stream that begins in the middle of an episode, after the
    replay service lost the one before, has no window before its history is whole: a shorter one would
    show the learner another stack than the policy saw.
    """

    def __init__(self, window: WindowSpec, num_envs: int, first_priority: FirstPriority) -> None:
        """Start before step 0 of every stream."""
        self._window, self._num_envs, self._first_priority = window, num_envs, first_priority
        self.restart()

    def restart(self) -> None:
        """Start anew before step 0; the next row is the first of a new stream."""
        self._recent = RecentTicks(self._window.steps + 1, self._num_envs)
        self._memories: deque[NDArray[np.float32]] = deque()  # of every step at which a window starts
        self._next_step = 0
        self._first_start = np.zeros(self._num_envs, dtype=np.int64)

    def add(self, row: Mapping[str, Array], memory: NDArray[np.float32] | None = None) -> Windows:
        """Take one row of every stream and return the windows it completes.

        Args:
            row: `reward`, `terminated`, `truncated`, `is_first`, `was_reset` and priority inputs,
                each [N, ...].
            memory: What the policy remembered before this row, [N, M]; None if it remembers nothing.
        """
        if self._next_step == 0:
            self._first_start = np.where(row["is_first"], 0, self._window.history)
        self._recent.push(row)
        if self._next_step % self._window.stride == 0:
            self._memories.append(np.zeros((self._num_envs, 0), np.float32) if memory is None else memory)
        start = self._next_step - self._window.steps
        self._next_step += 1
        if start < 0 or start % self._window.stride:
            return _NONE
        memory, ticks = self._memories.popleft(), self._recent.window()
        starts = (start >= self._first_start) & ~ticks["was_reset"][0].astype(np.bool_)
        env_index = np.flatnonzero(starts)
        if not len(env_index):
            return _NONE
        length = min(self._window.history, start) + self._window.steps + 1
        priority = self._first_priority(ticks)[env_index].astype(np.float64)
        return Windows(env_index, np.full(len(env_index), length, dtype=np.int64), priority, memory[env_index])


_NONE = Windows(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros((0, 0), np.float32))
