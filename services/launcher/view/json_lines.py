"""Output for scripts: one JSON object per line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from tidemill.config.run import RunSettings
from tidemill.learner.status import LearnerStatus
from tidemill.services.launcher.view.status import ClusterStatus
from tidemill.services.launcher.view.warnings import kind_of

_PROGRESS_EVERY_S = 10.0


class JsonView:
    """Lines with a `kind`: `event`, `warning`, `evaluation`, `progress` every ten seconds, and `end` at last.

    Each has `elapsed_s`, seconds since this session of the run was started. Fields are only ever added.
    """

    def __init__(self, run: RunSettings, stream: TextIO, earlier: int = 0) -> None:
        """Print to `stream`, but not the first `earlier` scores, which are of earlier sessions."""
        self._run, self._stream = run, stream
        self._elapsed_s = 0.0
        self._next_progress_s = 0.0
        self._scores = earlier
        self._warnings: frozenset[str] = frozenset()

    def event(self, message: str, details: Sequence[str] = ()) -> None:
        """Print the message and the lines that explain it."""
        self._print("event", message=message, details=list(details))

    def show(self, status: ClusterStatus) -> None:
        """Print new warnings and scores at once, and progress when it is due."""
        self._elapsed_s = status.elapsed_s
        warnings = {kind_of(warning): warning for warning in sorted(status.warnings)}
        for kind in warnings.keys() - self._warnings:
            self._print("warning", message=warnings[kind])
        self._warnings = frozenset(warnings)
        for score in status.scores[self._scores :]:
            self._print("evaluation", **dataclasses.asdict(score))
        self._scores = max(self._scores, len(status.scores))  # the file may be away for a moment
        if status.elapsed_s >= self._next_progress_s and status.counting:
            self._next_progress_s = status.elapsed_s + _PROGRESS_EVERY_S
            self._print("progress", **progress_fields(status, self._run))

    def end(self, folder: Path, exit_code: int, result: dict[str, Any], lines: Sequence[str]) -> None:
        """Print the run's result.json, if it has one, and where everything is."""
        del lines
        self._print("end", folder=str(folder), exit_code=exit_code, result=result)

    def close(self) -> None:
        """Nothing is held."""

    def _print(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - what JSON holds
        line = {"kind": kind, "elapsed_s": round(self._elapsed_s, 3)} | fields
        print(json.dumps(line), file=self._stream, flush=True)


def progress_fields(status: ClusterStatus, run: RunSettings) -> dict[str, Any]:
    """Return the progress of the run as numbers, which the status page shows as well."""
    learner = status.learner or LearnerStatus()
    processes = [
        {"name": row.name, "state": row.phase.value, "restarts": row.restarts, "reason": row.reason}
        for row in status.processes
    ]
    return {
        "env_steps": learner.env_steps,
        "env_steps_per_s": status.env_steps_per_s,
        "learner_steps": learner.learner_steps,
        "learner_steps_per_s": learner.steps_per_s if status.learner_answers else 0.0,
        "params_version": learner.params_version,
        "policy_lag": status.policy_lag,
        "table_items": learner.table_items,
        "replay_ratio": status.replay_ratio,
        "training_return": status.training_return,
        "env_failures": dict(status.env_failures),
        "best_mean": status.best.mean if status.best else None,
        "left_s": status.left_s(run),
        "evaluating": status.evaluating,
        "processes": processes,
    }
