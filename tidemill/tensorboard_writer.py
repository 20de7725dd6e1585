"""Scalars for TensorBoard, from any service that has some."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tidemill.callbacks import Callback


class TensorboardWriter:
    """Writes event files below a folder.

    TensorBoard's own writer is used instead of torch.utils.tensorboard, whose import alone takes seconds.
    """

    def __init__(self, folder: Path) -> None:
        """Open a new event file."""
        self._writer = EventFileWriter(str(folder))

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Write scalars by name at a step, and flush."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class LearnerCurves(Callback):
    """The learner's own callback: its metrics as curves over gradient steps, `learner/loss` and so on."""

    def __init__(self, folder: Path, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Open a file.

        Args:
            folder: Where it is written.
            every_s: Least seconds between two points; the first metrics are written at once.
            clock: Monotonic time in seconds.
        """
        self._writer, self._every_s, self._clock = TensorboardWriter(folder), every_s, clock
        self._next_s = clock()
        self._left: tuple[int, Mapping[str, float]] | None = None

    def on_update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a point if it is time, or else keep it in case it is the last."""
        self._left = (step, metrics)
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + self._every_s
            self._write()

    def close(self) -> None:
        """Write the last point and close the file."""
        self._write()
        self._writer.close()

    def _write(self) -> None:
        if self._left is not None:
            step, metrics = self._left
            self._writer.write({f"learner/{name}": value for name, value in metrics.items()}, step)
            self._left = None
