"""A clock that a test sets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Time that stands still until it is moved."""

    now_s: float = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s
