"""Progress of a run in one line: redrawn in place on a terminal and in a notebook, printed now and then elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import TextIO

from tidemill.config.run import RunSettings
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.scores import Score, best_score

_BAR_WIDTH = 20
_PRINTED_EVERY_S = 10.0
_NOTEBOOK_WIDTH = 100


class ProgressLine:
    """Writes the newest line over the one before it where the stream can, and adds one every ten seconds elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`: a terminal, the output of a notebook's cell, or a file."""
        self._stream = stream
        self._is_notebook = type(stream).__module__.startswith("ipykernel")
        self._is_redrawn = self._is_notebook or stream.isatty()
        self._width = 0  # of the line to write over
        self._printed_s = -_PRINTED_EVERY_S

    def show(self, text: str) -> None:
        """Show a line in place of the one before it."""
        if self._is_redrawn:
            columns = _NOTEBOOK_WIDTH if self._is_notebook else shutil.get_terminal_size().columns - 1
            self._redraw(text[:columns])
        elif time.monotonic() - self._printed_s >= _PRINTED_EVERY_S:
            self._printed_s = time.monotonic()
            self._write(f"{text}\n")

    def note(self, text: str) -> None:
        """Print a line that stays, above the one that is redrawn."""
        if self._width:
            self._redraw("")
        self._write(f"{text}\n")

    def _redraw(self, text: str) -> None:
        if self._is_redrawn:
            self._write(f"\r{text:{self._width}}" + ("" if text else "\r"))
            self._width = len(text)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def describe(
    status: LearnerStatus | None,
    scores: Sequence[Score],
    run: RunSettings,
    elapsed_s: float,
    confirmations: Sequence[Score] = (),
) -> str:
    """Return the progress of a run in one line.

    Args:
        status: The learner's; None while it does not answer.
        scores: Every evaluation so far, the oldest first.
        run: The target and the limits.
        elapsed_s: Seconds since the run was started.
        confirmations: Every confirmation on fresh episodes so far, the oldest first.
    """
    best = best_score(scores, confirmations, run.target_return)
    minutes, seconds = divmod(int(elapsed_s), 60)
    clock = f"{minutes}:{seconds:02d}"
    newest = f"score {scores[-1].mean:.1f}, best {best.mean:.1f}" if best else ""
    if status is None or status.state is LearnerState.STARTING:
        phase = "last evaluation" if status is None and scores else "starting"
        return "  ".join(filter(None, (clock, newest, phase)))
    done = fraction(status, scores, run, elapsed_s, confirmations)
    filled = round((done or 0.0) * _BAR_WIDTH)
    bar = "" if done is None else f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {done:4.0%}"
    counts = f"{status.env_steps:,} decisions, {status.learner_steps:,} updates ({status.steps_per_s:,.0f}/s)"
    return "  ".join(filter(None, (clock, bar, newest or "not evaluated yet", counts)))


def fraction(
    status: LearnerStatus,
    scores: Sequence[Score],
    run: RunSettings,
    elapsed_s: float,
    confirmations: Sequence[Score] = (),
) -> float | None:
    """Return how much of the way to its nearest end a run has covered, 0 to 1; None if it has no end."""
    found = [
        done / limit
        for done, limit in (
            (status.env_steps, run.max_env_steps),
            (status.learner_steps, run.max_learner_steps),
            (elapsed_s, run.max_wall_s),
        )
        if limit
    ]
    if run.target_return is not None:
        best = best_score(scores, confirmations, run.target_return)
        way = run.target_return - scores[0].mean if scores else 0.0
        found.append((best.mean - scores[0].mean) / way if best and way > 0 else float(bool(scores)))
    return min(max(*found, 0.0), 1.0) if found else None
