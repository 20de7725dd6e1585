"""Cleanup of processes that services started, such as simulators, in their process group or another one."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
from pathlib import Path

from tidemill import linux
from tidemill.programs import group_guard

_END_S = 10.0


class Groups:
    """Kills what is left of what a service has started, also when this process is killed: then the guard does."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._guard: subprocess.Popen[str] | None = None
        self._marks: dict[int, str] = {}

    def start(self) -> None:
        """Start the guard."""
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(group_guard.__file__)), str(linux.PROC)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the launcher
            text=True,
        )

    @staticmethod
    def new_mark() -> str:
        """Return a value of `MARK_VARIABLE` for the environment of a process that is to be started."""
        return secrets.token_hex(8)

    def add(self, leader: int, mark: str) -> None:
        """Guard the group of a process, and what has its mark."""
        self._marks[leader] = mark
        self._tell(f"+{leader} {mark}")

    def end(self, leader: int) -> None:
        """Kill what is left of what a process has started that has ended."""
        group_guard.kill_started(leader, self._marks.pop(leader), str(linux.PROC))
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
