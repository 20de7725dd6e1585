"""Which windows of the streams become items, and with what first priority."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.types import WindowSpec

Array = NDArray[Any]

FirstPriority = Callable[[Mapping[str, Array]], NDArray[np.float32]]
"""`Policy.initial_priority`: steps, each [steps + 1, K], to priorities [K]."""


def all_alike(steps: Mapping[str, Array]) -> NDArray[np.float32]:
    """Return 1 for each window: for a table that does not look at priorities."""
    return np.ones(steps["reward"].shape[1], np.float32)


@dataclass(frozen=True)
class Windows:
    """The windows that the rows of a chunk completed; lists have one entry a window.

    Attributes:
        env_index: Whose stream it is, int64 [K].
        last_row: Which of the rows since the last `take` is its last, int64 [K].
        length: Steps from the first of its store_id to its last, int64 [K].
        priority: First priority, float64 [K].
        recurrent_state: What the policy remembered when it first acted in the window, float32 [K, M]; M may be 0.
    """

    env_index: NDArray[np.int64]
    last_row: NDArray[np.int64]
    length: NDArray[np.int64]
    priority: NDArray[np.float64]
    recurrent_state: NDArray[np.float32]


class WindowTracker:
    """Watches the rows of N streams in step and names the windows that they complete, those of a chunk together.

    A window that starts acting at step s is complete with step s + `window.steps`. None starts at a final
    row, whose action the environment ignored. A stream that begins in the middle of an episode, after the
    replay service lost the one before, has no window before its store_id is whole: a shorter one would
    show the learner another stack than the policy saw. A window that is to `keep_all` knows neither exception.
    """

    def __init__(self, window: WindowSpec, num_envs: int, chunk_length: int, initial_priority: FirstPriority) -> None:
        """Start before step 0 of every stream; at most `chunk_length` rows come between two calls of `take`."""
        self._window, self._num_envs, self._initial_priority = window, num_envs, initial_priority
        self._room = window.steps + chunk_length
        self.restart()

    def restart(self) -> None:
        """Start again before step 0; the next row is the first of a new stream."""
        self._columns: dict[str, Array] = {}  # each [room, N, ...]: the steps that windows still need, then new ones
        self._recurrent_states: deque[NDArray[np.float32]] = deque()  # of every step at which a window starts
        self._first_kept = self._next_step = self._taken = 0  # steps: the oldest kept, the next, the next to be taken
        self._first_start = np.zeros(self._num_envs, dtype=np.int64)

    def add(self, row: Mapping[str, Array], recurrent_state: NDArray[np.float32] | None = None) -> None:
        """Take one row of every stream.

        Args:
            row: `reward`, `terminated`, `truncated`, `is_first`, `is_reset_step` and priority inputs,
                each [N, ...]; the same names at every call.
            recurrent_state: What the policy remembered before this row, [N, M]; None if it remembers nothing.
        """
        if self._next_step == 0:
            history = 0 if self._window.keep_all else self._window.history
            self._first_start = np.where(row["is_first"], 0, history)
            self._columns = {name: np.zeros((self._room, *value.shape), value.dtype) for name, value in row.items()}
        if self._next_step % self._window.stride == 0:
            self._recurrent_states.append(
                np.zeros((self._num_envs, 0), np.float32) if recurrent_state is None else recurrent_state
            )
        at = self._next_step - self._first_kept
        for name, column in self._columns.items():
            column[at] = row[name]
        self._next_step += 1

    def take(self) -> Windows:
        """Return the windows that the rows since the last call completed, oldest first."""
        steps, stride = self._window.steps, self._window.stride
        first = max(self._taken - steps, 0)
        start = np.arange(first + -first % stride, self._next_step - steps, stride)  # [S]
        indices = (start - self._first_kept) + np.arange(steps + 1)[:, None]  # [steps + 1, S]
        of_windows = {name: column[indices] for name, column in self._columns.items()}  # [steps + 1, S, N, ...]
        may_start = self._window.keep_all | ~of_windows["is_reset_step"][0].astype(np.bool_)  # [S, N]
        starts = (start[:, None] >= self._first_start) & may_start
        window, env_index = np.nonzero(starts)
        if len(window):
            joined = {name: column.reshape(steps + 1, -1, *column.shape[3:]) for name, column in of_windows.items()}
            priority = self._initial_priority(joined).reshape(starts.shape)[starts]
        else:
            priority = np.zeros(0, np.float32)
        recurrent_state = [self._recurrent_states.popleft() for _ in start]
        taken = Windows(
            env_index,
            start[window] + steps - self._taken,
            np.minimum(self._window.history, start[window]) + steps + 1,
            priority.astype(np.float64),
            np.stack(recurrent_state)[starts] if recurrent_state else np.zeros((0, 0), np.float32),
        )
        self._keep(steps)
        self._taken = self._next_step
        return taken

    def _keep(self, count: int) -> None:
        """Keep the newest `count` rows, or as many as there are."""
        kept = self._next_step - self._first_kept
        count = min(count, kept)
        for column in self._columns.values():
            column[:count] = column[kept - count : kept].copy()
        self._first_kept = self._next_step - count
