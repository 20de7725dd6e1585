"""Rate at which a count grows."""

from __future__ import annotations

from collections import deque

_RATE_WINDOW_S = 10.0


class RateMeter:
    """Rate at which a count grows, over the newest ten seconds, or since the previous count where that is older."""

    def __init__(self) -> None:
        """Start without a count."""
        self._history: deque[tuple[float, int]] = deque()

    def update(self, now_s: float, count: int) -> float:
        """Return the count's growth per second; 0 at the first count."""
        history = self._history
        if history and count < history[-1][1]:  # the learner went back to a checkpoint
            history.clear()
        history.append((now_s, count))
        while len(history) > 2 and history[1][0] <= now_s - _RATE_WINDOW_S:
            history.popleft()
        elapsed_s = now_s - history[0][0]
        return (count - history[0][1]) / elapsed_s if elapsed_s > 0 else 0.0
