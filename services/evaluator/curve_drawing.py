"""The drawing of a run's learning curve, while this process measures or films the last policy.

Importing matplotlib takes one or two seconds, by which every run would end later: another process does it, before the
last evaluation is complete, unless this one was forked by a server that has imported it, as that of a sweep has
(`tidemill.programs.fork_client.DRAWING`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from tidemill.config.sections import EvaluatorConfig
from tidemill.errors import described
from tidemill.parent import PARENT_VARIABLE

CURVE = Path("plots") / "learning_curve.png"
"""File in a run's folder."""

_MODULE = "tidemill.services.evaluator.curve"
_TIMEOUT_S = 60.0

_log = structlog.get_logger()


class _Artist(NamedTuple):
    """What draws one picture, once it is told to."""

    draw: Callable[[], None]
    finish: Callable[[], str]
    """Waits for its end; returns why there is no picture, or nothing."""


class CurveDrawing:
    """The drawing of the evaluations in scores.csv. A drawing that fails is logged and leaves no picture."""

    def __init__(self, config: EvaluatorConfig) -> None:
        """Start nothing yet."""
        run = config.run
        title = f"{run.name}: {config.agent.algorithm} on {config.env.id}, seed {run.seed}"
        target = [] if run.target_return is None else [repr(run.target_return)]
        self._arguments = [str(run.folder), title, *target]
        self._artist: _Artist | None = None

    def prepare(self) -> None:
        """Import what draws, in another process: the run may soon be over. May be called often."""
        if self._artist is None:
            find = _artist_here if "matplotlib.figure" in sys.modules else _artist_process
            self._artist = find(self._arguments)

    def start(self) -> None:
        """Begin to draw the evaluations that there are."""
        self.prepare()
        assert self._artist is not None
        self._artist.draw()

    def finish(self) -> str | None:
        """Wait for the picture, at most a minute; return its file in the run's folder, None if it was not drawn."""
        assert self._artist is not None
        reason, self._artist = self._artist.finish(), None
        if reason:
            _log.warning("learning curve not drawn", reason=reason)
            return None
        return str(CURVE)


def _artist_here(arguments: Sequence[str]) -> _Artist:
    """Return a thread that draws."""
    reason = f"it took longer than {_TIMEOUT_S:g} s"

    def draw() -> None:
        nonlocal reason
        from tidemill.services.evaluator.curve import main

        try:
            main(arguments)
            reason = ""
        except Exception as error:
            reason = described(error)

    def finish() -> str:
        thread.join(_TIMEOUT_S)
        return reason

    thread = threading.Thread(target=draw, daemon=True)
    return _Artist(thread.start, finish)


def _artist_process(arguments: Sequence[str]) -> _Artist:
    """Start a process that draws when it is sent a line."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tidemill.programs.child", _MODULE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C is for the evaluator
            env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
        )
    except OSError as error:
        reason = str(error)
        return _Artist(lambda: None, lambda: reason)

    def draw() -> None:
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # `finish` says why it has ended
                process.stdin.write("\n")  # its end would not do: an environment's workers may hold the pipe, too
                process.stdin.close()
            process.stdin = None  # `communicate` would flush it

    def finish() -> str:
        try:
            _, said = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"it took longer than {_TIMEOUT_S:g} s"
        return said.strip().rpartition("\n")[2] or f"exit code {process.returncode}" if process.returncode else ""

    return _Artist(draw, finish)
