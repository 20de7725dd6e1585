"""Whether a process is well: what its gRPC health service and its `/healthz` both say."""

from __future__ import annotations

import time
from collections.abc import Callable

BEAT_S = 1.0
"""Seconds between two beats of an event loop that turns."""

_SILENCE_S = 5.0


class Health:
    """Read by the thread that serves `/healthz`, written by the event loop of the server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin as not serving.

        Args:
            clock: Monotonic time in seconds.
        """
        self.serving = False
        """Whether the process does what it is there for."""
        self._clock = clock
        self._beaten_s: float | None = None

    def beat(self) -> None:
        """Say that the event loop turns. From the first call on it has to be said every few seconds."""
        self._beaten_s = self._clock()

    def complaint(self) -> str:
        """Return what is wrong, in words; empty if the process is well."""
        if not self.serving:
            return "NOT_SERVING"
        silent_s = 0.0 if self._beaten_s is None else self._clock() - self._beaten_s
        return f"the event loop has not turned for {silent_s:.0f} s" if silent_s > _SILENCE_S else ""
