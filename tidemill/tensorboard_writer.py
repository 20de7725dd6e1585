"""Scalars, pictures and settings for TensorBoard, from any service that has some."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class TensorboardWriter:
    """Writes event files below a folder.

    TensorBoard's own writer is used instead of torch.utils.tensorboard, whose import alone takes seconds.
    """

    def __init__(self, folder: Path) -> None:
        """Open a new event file."""
        self._folder = str(folder)
        self._writer: EventFileWriter | None = EventFileWriter(self._folder)

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Write scalars by name at a step, and flush."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def write_picture(self, name: str, file: Path, size: tuple[int, int], step: int) -> None:
        """Write a picture at a step, and flush.

        Args:
            name: Its tag.
            file: A PNG or a GIF, which moves there.
            size: Width and height in pixels.
            step: Where it stands.
        """
        image = Summary.Image(width=size[0], height=size[1], colorspace=3, encoded_image_string=file.read_bytes())
        summary = Summary(value=[Summary.Value(tag=name, image=image)])
        self._add(Event(wall_time=time.time(), step=step, summary=summary))

    def write_hparams(self, settings: Mapping[str, Any], name: str) -> None:
        """Write the settings of a run, for TensorBoard's page HParams.

        There they are columns such as `agent.gamma`, beside the scalars of the same folder, and runs are its rows.

        Args:
            name: What the row is called, with the time: rows that are called the same are taken for one.
            settings: Sections of settings as YAML holds them. Lists are written as JSON, none as `none`.
        """
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # type: ignore[import-untyped,unused-ignore]

        trial = f"{name}, {time.strftime('%Y-%m-%d %H:%M:%S')}"
        summary = hparams_pb(dict(_flat(settings)), trial_id=trial, start_time_secs=time.time())
        self._add(Event(wall_time=time.time(), summary=summary))

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _add(self, event: Event) -> None:
        """Write an event, and flush; raises OSError, after which the next goes to a new file."""
        try:
            if self._writer is None:
                self._writer = EventFileWriter(self._folder)
            self._writer.add_event(event)
            self._writer.flush()
        except OSError:
            self._writer = None  # it would raise the same ever after
            raise


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | float | str]]:
    """Yield dotted names and values of the types that TensorBoard knows."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool | float | str):
            yield f"{prefix}{name}", value
        elif isinstance(value, int):
            yield f"{prefix}{name}", float(value)
        else:
            yield f"{prefix}{name}", "none" if value is None else json.dumps(value)
