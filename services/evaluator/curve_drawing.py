"""The drawing of a run's learning curve, while this process films the policy or its learner saves.

Importing matplotlib takes almost two seconds, by which every run would end later: another process does it, unless this
one was forked by a server that has imported it, as that of a sweep has (`tidemill.programs.fork_client.DRAWING`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from tidemill.config.sections import EvaluatorConfig
from tidemill.errors import described
from tidemill.parent import PARENT_VARIABLE

CURVE = Path("plots") / "learning_curve.png"
"""File in a run's folder."""

_MODULE = "tidemill.services.evaluator.curve"
_TIMEOUT_S = 60.0

_log = structlog.get_logger()


class CurveDrawing:
    """One drawing of the evaluations in scores.csv. A drawing that fails is logged and leaves no picture."""

    def __init__(self, config: EvaluatorConfig) -> None:
        """Start it; it ends with the thread that started it."""
        run = config.run
        title = f"{run.name}: {config.agent.algorithm} on {config.env.id}, seed {run.seed}"
        target = [] if run.target_return is None else [repr(run.target_return)]
        start = _start_here if "matplotlib.figure" in sys.modules else _start_process
        self._finish = start([str(run.folder), title, *target])

    def finish(self) -> str | None:
        """Wait for the picture, at most a minute; return its file in the run's folder, None if it was not drawn."""
        if reason := self._finish():
            _log.warning("learning curve not drawn", reason=reason)
            return None
        return str(CURVE)


def _start_here(arguments: Sequence[str]) -> Callable[[], str]:
    """Start to draw in a thread; return what waits for its end and returns why there is no picture."""
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
    thread.start()
    return finish


def _start_process(arguments: Sequence[str]) -> Callable[[], str]:
    """Start a process that draws; return what waits for its end and returns why there is no picture."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tidemill.programs.child", _MODULE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
        )
    except OSError as error:
        reason = str(error)
        return lambda: reason

    def finish() -> str:
        try:
            _, said = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"it took longer than {_TIMEOUT_S:g} s"
        return said.strip().rpartition("\n")[2] or f"exit code {process.returncode}" if process.returncode else ""

    return finish
