"""Decision when a batch of steps is due: by its size, by the longest wait, or because no more steps can come."""

from __future__ import annotations

from collections import deque
from typing import Generic, Literal, TypeVar

_T = TypeVar("_T")

Cause = Literal["full", "complete", "deadline"]
"""Why a batch went: it held as much as fits, every actor's step, or a step that had waited long enough."""


class Batcher(Generic[_T]):
    """Steps that wait for their forward pass, oldest first. It keeps no clock and takes no lock."""

    def __init__(self, max_rows: int, max_wait_s: float) -> None:
        """Begin empty.

        Args:
            max_rows: Most environments in one batch.
            max_wait_s: Longest wait of a step for others, in seconds.
        """
        self._max_rows, self._max_wait_s = max_rows, max_wait_s
        self._waiting: deque[tuple[_T, int, float]] = deque()
        self._rows = 0

    def __len__(self) -> int:
        """Return the number of waiting steps."""
        return len(self._waiting)

    def add(self, step: _T, rows: int, now_s: float) -> None:
        """Let a step wait, of so many environments, at most `max_rows`."""
        self._waiting.append((step, rows, now_s))
        self._rows += rows

    def remove(self, step: _T) -> None:
        """Let a step wait no longer; one that was taken is left alone."""
        for number, (waiting, rows, _) in enumerate(self._waiting):
            if waiting is step:
                del self._waiting[number]
                self._rows -= rows
                return

    def cause(self, now_s: float, actors: int) -> Cause | None:
        """Return the reason that a batch is due; None if none is.

        Args:
            now_s: The time.
            actors: How many are connected; each has at most one step waiting.
        """
        if not self._waiting:
            return None
        if self._rows >= self._max_rows:
            return "full"
        if len(self._waiting) >= actors:
            return "complete"
        return "deadline" if self.deadline_s() <= now_s else None

    def deadline_s(self) -> float:
        """Return the time at which the oldest step has waited long enough; there must be one."""
        return self._waiting[0][2] + self._max_wait_s

    def take(self) -> list[tuple[_T, float]]:
        """Return the oldest steps that fit into one batch, and when each came; they no longer wait."""
        taken: list[tuple[_T, float]] = []
        rows = 0
        while self._waiting and (not taken or rows + self._waiting[0][1] <= self._max_rows):
            step, its_rows, came_s = self._waiting.popleft()
            taken.append((step, came_s))
            rows += its_rows
        self._rows -= rows
        return taken
