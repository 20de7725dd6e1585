"""Time limits that leave out the time in which the process stood still. Imports nothing that takes time.

The monotonic clock runs while a process is suspended (Ctrl-Z), its container paused or its job preempted. By that
clock a limit has passed as soon as the process continues, before anything that it waited for had time to happen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_POLL_S = 1.0


class AwakeClock:
    """Monotonic seconds, of which at most `longest_s` pass between two readings. Whoever waits reads it that often."""

    def __init__(self, longest_s: float, now: Callable[[], float] = time.monotonic) -> None:
        """Begin at 0."""
        self._longest_s, self._now = longest_s, now
        self._lock = threading.Lock()
        self._last_s, self._awake_s = now(), 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        with self._lock:
            now_s = self._now()
            self._awake_s += min(now_s - self._last_s, self._longest_s)
            self._last_s = now_s
            return self._awake_s


class AwakeTimer(threading.Timer):
    """A `threading.Timer` by such a clock, which does not keep its process from ending.

    Attributes:
        clock: Its clock, which its thread reads each second, so that others may read it as seldom as they like.
    """

    def __init__(
        self, interval: float, function: Callable[[], object], now: Callable[[], float] = time.monotonic
    ) -> None:
        """Call `function` in another thread `interval` seconds after `start`, unless it is cancelled before."""
        super().__init__(interval, function)
        self.daemon = True
        self._poll_s = min(interval, _POLL_S)
        self.clock = AwakeClock(self._poll_s, now)

    def run(self) -> None:
        """Wait, then call."""
        while not self.finished.wait(self._poll_s):
            if self.clock() >= self.interval:
                self.finished.set()
                self.function()
