"""Tells the launcher how far an evaluation is, or why there was none, by a file in the run's folder."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill.atomic_files import remove, write_atomically
from tidemill.scores import EVALUATING

_EVERY_S = 1.0


class ProgressFile:
    """Writes `evaluating.json`, at most once a second; a disk that refuses it changes nothing else."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        """Remove what an evaluator that was killed has left."""
        self._file, self._now, self._next_s = folder / EVALUATING, now, 0.0
        remove(self._file)

    def write(self, version: int, ended: int, episodes: int) -> None:
        """Note that so many of the episodes of a version have ended."""
        if (now_s := self._now()) < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        self._write({"version": version, "ended": ended, "episodes": episodes})

    def clear(self) -> None:
        """Note that nothing is evaluated."""
        self._next_s = 0.0
        remove(self._file)

    def refuse(self, version: int, reason: str) -> None:
        """Note, until the next evaluation, why a version was not evaluated."""
        self._write({"version": version, "refusal": reason})

    def _write(self, document: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            write_atomically(self._file, json.dumps(document) + "\n", sync=False)
