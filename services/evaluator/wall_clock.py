"""Seconds of training over all sessions of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from tidemill.atomic_files import write_atomically

SESSION_VARIABLE = "TIDEMILL_SESSION_START_S"
"""Environment variable with the launcher's start time of the processes, on the monotonic clock."""


class WallClock:
    """Counts from the start of each session: that of the launcher if there is one, else of this process.

    What earlier sessions took is kept in wall_clock.json, which `save` writes; a session that was killed
    loses what it had not saved.
    """

    def __init__(self, file: Path, session_start_s: float, now: Callable[[], float]) -> None:
        """Read the time of earlier sessions.

        Args:
            file: Where it is kept.
            session_start_s: When this session started, on the clock `now`. An evaluator that was restarted
                within a session gets the same value and does not count its time twice.
            now: Monotonic time in seconds.
        """
        self._file, self._session_start_s, self._now = file, session_start_s, now
        self._before_s = self._read()

    def wall_s(self) -> float:
        """Return the seconds of training so far."""
        return self._before_s + max(self._now() - self._session_start_s, 0.0)

    def save(self) -> None:
        """Save the time so far for the next session."""
        document = {
            "session_start_s": self._session_start_s,
            "before_s": self._before_s,
            "wall_s": round(self.wall_s(), 3),
        }
        write_atomically(self._file, json.dumps(document) + "\n")

    def _read(self) -> float:
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return 0.0
        is_same_session = document["session_start_s"] == self._session_start_s
        return float(document["before_s"] if is_same_session else document["wall_s"])


def session_start_s(now: Callable[[], float]) -> float:
    """Return when the launcher started this session, or the present time without a launcher."""
    value = os.environ.get(SESSION_VARIABLE, "")
    return float(value) if value else now()
