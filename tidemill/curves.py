"""A run's curves as files: lines of JSON, and curves that a process can do without."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.logger import LateLogger

if TYPE_CHECKING:
    from tidemill.tensorboard_writer import TensorboardWriter

CURVES = "curves"
"""Folder in a run of what `SideCurves` writes as lines of JSON, one file for each writer."""

CLUSTER = "cluster"
"""Name of the writer of what actors and replay service do together."""

EPISODE_RETURN = "actor/episode_return"
"""Name of an actor's curve: the mean return of its newest training episodes, at most 100."""

ENV_FAILURES = "env_failures/"
"""What an actor's curves of its environments' failures begin with, before the kind: counts since it started."""

_log = LateLogger()


class MetricsFile:
    """An object per line with `time` (seconds since 1970), `step` (updates) and the scalars.

    A resumed run continues the file. Steps go back where the learner went back to a checkpoint; the later line counts.
    A value that is not finite is null.
    """

    def __init__(self, file: Path) -> None:
        """Open the file; a last line whose writing was cut is removed."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("ab+")
        self._file.seek(0)
        content = self._file.read()
        self._file.truncate(content.rfind(b"\n") + 1)

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Append a line."""
        values = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        line = {"time": round(time.time(), 3), "step": step} | values
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SideCurves:
    """Writes points into separate files, from the first one on, until the disk refuses one.

    TensorBoard has them over agent decisions, in its run NAME; `curves/NAME.jsonl` has them over updates, as
    metrics.jsonl has the learner's, with `env_steps` beside them.
    """

    def __init__(self, run: Path, name: str) -> None:
        """Open nothing yet: the import behind it would delay the start of a process.

        Args:
            run: The run's folder.
            name: Of whoever writes.
        """
        self._run, self._name = run, name
        self._files: tuple[TensorboardWriter, MetricsFile] | None = None
        self._is_closed = False

    def write(self, scalars: Mapping[str, float], *, env_steps: int, learner_steps: int) -> None:
        """Write scalars by name; nothing after `close`, or once it has failed."""
        if self._is_closed:
            return
        try:
            tensorboard, lines = self._open()
            tensorboard.write(scalars, env_steps)
            lines.write({"env_steps": env_steps, **scalars}, learner_steps)
        except OSError as error:
            _log.warning(
                "cannot write curves; stopped writing them", run=str(self._run), name=self._name, reason=str(error)
            )
            self._is_closed = True

    def close(self) -> None:
        """Close the files. May be called twice."""
        if self._files is not None and not self._is_closed:
            for file in self._files:
                file.close()
        self._is_closed = True

    def _open(self) -> tuple[TensorboardWriter, MetricsFile]:
        if self._files is None:
            from tidemill.tensorboard_writer import TensorboardWriter

            tensorboard = TensorboardWriter(self._run / "tensorboard" / self._name)
            self._files = tensorboard, MetricsFile(self._run / CURVES / f"{self._name}.jsonl")
        return self._files
