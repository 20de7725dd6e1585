"""The drawing of a run's learning curve by another process, while this one films the policy or its learner saves.

Importing matplotlib takes almost two seconds, by which every run would end later.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import structlog

from tidemill.config.sections import EvaluatorConfig
from tidemill.parent import PARENT_VARIABLE

CURVE = Path("plots") / "learning_curve.png"
"""File in a run's folder."""

_MODULE = "tidemill.services.evaluator.curve"
_TIMEOUT_S = 60.0

_log = structlog.get_logger()


class CurveDrawing:
    """One drawing of the evaluations in scores.csv. A drawing that fails is logged and leaves no picture."""

    def __init__(self, config: EvaluatorConfig) -> None:
        """Start the process; it ends with the thread that started it."""
        run = config.run
        title = f"{run.name}: {config.agent.algorithm} on {config.env.id}, seed {run.seed}"
        target = [] if run.target_return is None else [repr(run.target_return)]
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tidemill.programs.child", _MODULE, str(run.folder), title, *target],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
            )
        except OSError as error:
            _log.warning("learning curve not drawn", reason=str(error))

    def finish(self) -> str | None:
        """Wait for the picture, at most a minute; return its file in the run's folder, None if it was not drawn."""
        if self._process is None:
            return None
        try:
            _, said = self._process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            said = f"it took longer than {_TIMEOUT_S:g} s"
        if self._process.returncode:
            _log.warning("learning curve not drawn", reason=said.strip().rpartition("\n")[2])
            return None
        return str(CURVE)
