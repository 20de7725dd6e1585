"""TensorBoard curves that a process can do without: opened late, given up when they cannot be written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from tidemill.tensorboard_writer import TensorboardWriter

_log = structlog.get_logger()


class SideCurves:
    """Writes points into a folder of their own, from the first one on, until the disk refuses one."""

    def __init__(self, folder: Path) -> None:
        """Open nothing yet: the import behind it would delay the start of a process."""
        self._folder = folder
        self._writer: TensorboardWriter | None = None
        self._is_closed = False

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Write scalars by name at a step; nothing after `close`, or once it has failed."""
        if self._is_closed:
            return
        try:
            self._open().write(scalars, step)
        except OSError as error:
            _log.warning("curves are given up", folder=str(self._folder), reason=str(error))
            self._is_closed = True

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._writer is not None and not self._is_closed:
            self._writer.close()
        self._is_closed = True

    def _open(self) -> TensorboardWriter:
        if self._writer is None:
            from tidemill.tensorboard_writer import TensorboardWriter

            self._writer = TensorboardWriter(self._folder)
        return self._writer
