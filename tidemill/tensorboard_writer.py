"""Scalars, pictures and settings for TensorBoard, from any service that has some."""

from __future__ import annotations

import io
import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from tidemill.atomic_files import append_whole

_PREFIX = "events.out.tfevents."
_numbers = itertools.count()  # of this process's writers, in the names of their files


class TensorboardWriter:
    """Writes an event file below a folder, from the first event on.

    TensorBoard's own records are used instead of torch.utils.tensorboard, whose import alone takes seconds, and instead
    of its EventFileWriter, whose thread ends at the first error. Here each event is written at once or not at all, and
    after an OSError, as of a full disk, the next continues the file.
    """

    def __init__(self, folder: Path) -> None:
        """Write nothing yet."""
        earlier = (file.name.removeprefix(_PREFIX).partition(".")[0] for file in folder.glob(f"{_PREFIX}*"))
        # TensorBoard reads files in the order of their names, and may read none before one that it has read
        number = max([int(time.time()), *(int(each) + 1 for each in earlier if each.isdecimal())])
        name = f"{_PREFIX}{number:010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._file = folder / name
        self._is_begun = False

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Write scalars by name at a step."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def write_picture(self, name: str, file: Path, size: tuple[int, int], step: int) -> None:
        """Write a picture at a step.

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

    def _add(self, event: Event) -> None:
        """Write an event, the first one after that of the format."""
        content = io.BytesIO()
        records = RecordWriter(content)
        if not self._is_begun:
            records.write(Event(wall_time=event.wall_time, file_version="brain.Event:2").SerializeToString())
        records.write(event.SerializeToString())
        self._file.parent.mkdir(parents=True, exist_ok=True)
        append_whole(self._file, content.getvalue(), sync=False)
        self._is_begun = True


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
