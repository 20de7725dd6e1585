"""Scalars for TensorBoard, from any service that has some."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


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
