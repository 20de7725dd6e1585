"""A run's curves as files: lines of JSON, and curves that a process can do without."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.atomic_files import append_whole
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

LAST_ENV_FAILURE = "last_env_failure"
"""Name of the text beside them: what failed last, and why."""

_log = LateLogger()

_NO_TEXTS: Mapping[str, str] = {}


class MetricsFile:
    """An object per line with `time` (seconds since 1970), `step` (updates) and the scalars.

    A resumed run continues the file. Steps go back where the learner went back to a checkpoint; the later line counts.
    A value that is not finite is null. After an OSError, as of a full disk, the next line continues the file.
    """

    def __init__(self, file: Path) -> None:
        """Remove the last line of the file if its writing was cut."""
        self._file = file
        with suppress(FileNotFoundError):
            os.truncate(file, file.read_bytes().rfind(b"\n") + 1)

    def write(self, scalars: Mapping[str, float], step: int, texts: Mapping[str, str] = _NO_TEXTS) -> None:
        """Append a line; it ends with the texts."""
        values = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        line = {"time": round(time.time(), 3), "step": step, **values, **texts}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        append_whole(self._file, json.dumps(line) + "\n", sync=False)


class Refusals:
    """Drops what a disk does not take, such as a full one, and warns once until it takes something again."""

    def __init__(self, what: str) -> None:
        """Take what the warning names."""
        self._what, self._is_told = what, False

    @contextmanager
    def dropped(self) -> Iterator[None]:
        """Drop what the block cannot write."""
        try:
            yield
            self._is_told = False
        except OSError as error:
            if not self._is_told:
                _log.warning("cannot write a point of the curves, dropped", curves=self._what, reason=str(error))
            self._is_told = True


class SideCurves:
    """Writes points into separate files, from the first one on; one that the disk refuses is dropped.

    TensorBoard has them over agent decisions, in its run NAME; `curves/NAME.jsonl` has them over updates, as
    metrics.jsonl has the learner's, with `env_steps` beside them.
    """

    def __init__(self, run: Path, name: str, is_own: Callable[[], bool] = lambda: True) -> None:
        """Write nothing yet: the import behind it would delay the start of a process.

        Args:
            run: The run's folder.
            name: Of whoever writes.
            is_own: Whether the folder is that of the writer's run. A point at another time is left out.
        """
        self._run, self._name, self._is_own = run, name, is_own
        self._files: tuple[TensorboardWriter, MetricsFile] | None = None
        self._refusals = Refusals(name)
        self._is_closed = False

    def write(
        self,
        scalars: Mapping[str, float],
        *,
        env_steps: int,
        learner_steps: int,
        texts: Mapping[str, str] = _NO_TEXTS,
    ) -> None:
        """Write scalars by name, and texts in the line of JSON alone; nothing after `close`."""
        if self._is_closed or not self._is_own():
            return
        with self._refusals.dropped():
            tensorboard, lines = self._open()
            tensorboard.write(scalars, env_steps)
            lines.write({"env_steps": env_steps, **scalars}, learner_steps, texts)

    def close(self) -> None:
        """Write nothing more. May be called twice."""
        self._is_closed = True

    def _open(self) -> tuple[TensorboardWriter, MetricsFile]:
        if self._files is None:
            from tidemill.tensorboard_writer import TensorboardWriter

            tensorboard = TensorboardWriter(self._run / "tensorboard" / self._name)
            self._files = tensorboard, MetricsFile(self._run / CURVES / f"{self._name}.jsonl")
        return self._files
