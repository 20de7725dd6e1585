"""The learner's metrics over updates, as files: TensorBoard's, and lines of JSON for everything else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from tidemill.config.sections import LearnerConfig
from tidemill.curves import MetricsFile, Refusals
from tidemill.loggers.callbacks import Callback, CallbackThread, make_callbacks
from tidemill.tensorboard_writer import TensorboardWriter

_METRICS_EVERY_S = 10.0  # between two lines of metrics.jsonl


class ScalarWriter(Protocol):
    """Destination of scalars."""

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Write scalars by name at a step."""
        ...


class LearnerCurves(Callback):
    """The learner's own callback: its metrics over updates, named `learner/loss` and so on.

    A point that the disk refuses is dropped.
    """

    def __init__(self, writer: ScalarWriter, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Write nothing yet.

        Args:
            writer: Where the points go.
            every_s: Least seconds between two points; the first metrics are written at once.
            clock: Monotonic time in seconds.
        """
        self._writer, self._every_s, self._clock = writer, every_s, clock
        self._next_s = clock()
        self._refusals = Refusals("learner")
        self._left: tuple[int, Mapping[str, float]] | None = None

    def on_update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a point if it is time, or else keep it in case it is the last."""
        self._left = (step, metrics)
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + self._every_s
            self._write()

    def close(self) -> None:
        """Write the last point."""
        self._write()

    def _write(self) -> None:
        if self._left is not None:
            step, metrics = self._left
            with self._refusals.dropped():
                self._writer.write({f"learner/{name}": value for name, value in metrics.items()}, step)
            self._left = None


def learner_callbacks(config: LearnerConfig, *, is_first: bool) -> CallbackThread:
    """Return the callbacks of the first of all learners: the user's, and those that write curves; others have none."""
    settings = config.learner
    if not is_first:
        return CallbackThread({})
    callbacks = make_callbacks("learner.callbacks", settings.callbacks, config.run, config)
    if settings.tensorboard_every_s:
        writer = TensorboardWriter(config.run.folder / "tensorboard" / "learner")
        callbacks["tensorboard"] = LearnerCurves(writer, settings.tensorboard_every_s)
    callbacks["metrics.jsonl"] = LearnerCurves(MetricsFile(config.run.folder / "metrics.jsonl"), _METRICS_EVERY_S)
    return CallbackThread(callbacks)
