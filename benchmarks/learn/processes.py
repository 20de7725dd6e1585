"""Processes that are started, waited for with a bound, and never left behind."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidemill.parent import PARENT_VARIABLE

_STOP_S = 60.0
_AGAIN_S = 20.0


class Stopped(Exception):
    """The processes were asked to stop; no further one is started."""


class Processes:
    """Whatever this program has running. Safe to use from several threads."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def run(
        self, command: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str] | None = None
    ) -> int | None:
        """Run a command to its end, its output added to a log.

        Args:
            command: The program and its arguments.
            log: File its output is appended to.
            limit_s: Seconds after which it is stopped.
            environment: Variables it gets besides this process's own.

        Returns:
            Its exit code, or None if it had to be stopped at the limit.

        Raises:
            Stopped: `stop` was called before its end.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = self._start(command, output.fileno(), environment or {})
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            _await_end(process)
            code = None
        finally:
            with self._lock:
                self._running.discard(process)
        if self._is_stopped:
            raise Stopped
        return code

    def stop(self) -> None:
        """Ask every process to stop and wait until none is left; nothing is started from now on."""
        with self._lock:
            self._is_stopped = True
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            _await_end(process)

    def _start(self, command: Sequence[str], output: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        # Named as the parent, this process takes its children with it even when it is killed.
        variables = os.environ | {PARENT_VARIABLE: str(os.getpid()), **environment}
        with self._lock:
            if self._is_stopped:
                raise Stopped
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,  # Ctrl-C is for this program, which stops them in order
            )
            self._running.add(process)
        return process


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that got SIGTERM; a second one means at once, and SIGKILL comes last."""
    try:
        process.wait(_STOP_S)
        return
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(_AGAIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
