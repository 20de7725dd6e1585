"""Pauses between attempts to reach a server."""

from __future__ import annotations


class Backoff:
    """Pauses that double from `first_s` up to `limit_s`, in seconds."""

    def __init__(self, first_s: float = 0.1, limit_s: float = 5.0) -> None:
        self._first_s, self._limit_s = first_s, limit_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return the next pause."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._limit_s)
        return pause_s

    def reset(self) -> None:
        """Begin again with the first pause, after a success."""
        self._next_s = self._first_s
