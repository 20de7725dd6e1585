"""The process groups of the services, which end with them: a service may have started simulators."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from tidemill.programs import group_guard

_END_S = 10.0


class Groups:
    """Kills what is left of a service's group, also when this process is killed: then the guard does."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._guard: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the guard."""
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(group_guard.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the launcher
            text=True,
        )

    def add(self, leader: int) -> None:
        """Guard the group of a process."""
        self._tell(f"+{leader}")

    def end(self, leader: int) -> None:
        """Kill what is left of the group of a process that has ended."""
        group_guard.kill_group(leader)
        self._tell(f"-{leader}")

    def close(self) -> None:
        """End the guard."""
        if self._guard is None:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._guard.communicate(timeout=_END_S)
        self._guard.kill()
        self._guard.wait()

    def _tell(self, line: str) -> None:
        if self._guard is None or self._guard.stdin is None:
            return
        with contextlib.suppress(OSError):  # somebody has ended the guard
            self._guard.stdin.write(line + "\n")
            self._guard.stdin.flush()
