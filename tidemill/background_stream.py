"""A standard stream that a thread writes: nobody waits for a reader that takes nothing."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading
from typing import Any, TextIO

_PATIENCE_S = 0.2
"""Wait of a flush, for what is written to standard output and error in turns to arrive in that order."""

_LAST_PATIENCE_S = 5.0
"""Wait of the process's end for a reader that takes nothing meanwhile."""

_MOST_PARTS = 1000
"""Bound of what waits for a reader. What is written at once, up to the end of a line, is a part."""


class BackgroundStream:
    """A stream whose file a thread writes to.

    A pipe that is full or a terminal that was stopped by Ctrl-S holds up the thread alone. What it does not take waits;
    beyond a bound the oldest whole parts are lost. At the end of the process all that waits is lost, the newest parts
    included, once the file has taken nothing for some seconds.
    """

    def __init__(self, stream: TextIO) -> None:
        """Write to the file of a stream from now on."""
        stream.flush()
        self._stream = stream
        self._begun = ""
        self._parts: list[bytes] = []
        self._changed = threading.Condition()
        self._is_late = False
        """Whether the file did not take something in time and has not caught up since: nobody waits again for it."""
        threading.Thread(target=self._write_parts, args=(stream.fileno(),), name="output", daemon=True).start()
        atexit.register(self._finish)

    def write(self, text: str) -> int:
        """Hand the text over once its line ends."""
        with self._changed:
            self._begun += text
            if text.endswith("\n"):
                self._hand_over()
        return len(text)

    def flush(self) -> None:
        """Hand over what was written; wait for it a moment, unless the file is late already."""
        with self._changed:
            self._hand_over()
            if not self._is_late:
                self._is_late = not self._changed.wait_for(lambda: not self._parts, _PATIENCE_S)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else the stream has
        """Return an attribute of the stream."""
        return getattr(self._stream, name)

    def _hand_over(self) -> None:
        text, self._begun = self._begun, ""
        if text:
            self._parts.append(text.encode(self._stream.encoding, self._stream.errors or "strict"))
            del self._parts[1:-_MOST_PARTS]  # not the first, which may have been written in part
            self._changed.notify_all()

    def _finish(self) -> None:
        """Wait for the rest while the file takes something, and until Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt), self._changed:
            self._hand_over()
            while self._parts and self._changed.wait(_LAST_PATIENCE_S):
                pass

    def _write_parts(self, file: int) -> None:
        """Write what is handed over, or lose what fails."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._parts)
                part = self._parts[0]
            try:
                written = os.write(file, part[: select.PIPE_BUF])
            except BlockingIOError:  # another process with the same file made it so
                select.select([], [file], [])
                continue
            except OSError:
                written = len(part)
            with self._changed:
                self._parts[:1] = [rest] if (rest := part[written:]) else []
                self._is_late &= bool(self._parts)
                self._changed.notify_all()
