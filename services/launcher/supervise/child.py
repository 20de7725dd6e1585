"""The running processes of the cluster: one with its log file, and one that stands by to replace it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tidemill.child import PARENT_VARIABLE, WAIT
from tidemill.services.launcher.supervise.service_spec import ServiceSpec

_DEFAULTS = {
    # The video encoder is the only process that a service starts: gRPC need not survive in it, nor warn of it.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "SDL_VIDEODRIVER": "dummy",
}
_SIGNALS = {"finish": signal.SIGUSR1, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}


class Child:
    """A process in a separate session.

    Ctrl-C on the terminal so reaches the launcher only, which ends its children in order.
    """

    def __init__(self, process: asyncio.subprocess.Process, log_file: Path) -> None:
        """Take over a started process."""
        self._process, self._log_file = process, log_file

    @classmethod
    async def start(
        cls, spec: ServiceSpec, log_file: Path, variables: Mapping[str, str], *, waits: bool = False
    ) -> Child:
        """Start `python -m MODULE ARGUMENTS` with more environment variables, its output added to a log file.

        Called on the main thread only: the kernel ends the child when the thread that started it ends.

        Args:
            spec: What to start.
            log_file: Its log file.
            variables: The environment variables.
            waits: Whether it only imports what it needs and then waits for `begin`.
        """
        environment = _DEFAULTS | os.environ | {PARENT_VARIABLE: str(os.getpid()), **variables}
        words = (WAIT, spec.module) if waits else (spec.module,)
        with log_file.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # no file of the working directory shadows a module
                "-m",
                "tidemill.child",
                *words,
                *spec.arguments,
                stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        if spec.nice:
            os.setpriority(os.PRIO_PROCESS, process.pid, spec.nice)
        return cls(process, log_file)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended."""
        return self._process.returncode is not None

    def begin(self) -> None:
        """Let a waiting process do its work; no effect on one that has ended."""
        if self._process.stdin is not None:
            self._process.stdin.write(b"\n")
            self._process.stdin.close()

    async def wait(self) -> int:
        """Wait for its end; return the exit code, -N if signal N killed it."""
        return await self._process.wait()

    def send(self, verb: str) -> None:
        """Send the signal for `finish`, `terminate` or `kill`; no effect on a process that has ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(_SIGNALS[verb])

    def last_lines(self, count: int) -> list[str]:
        """Return the newest lines of its log."""
        with self._log_file.open(encoding="utf-8", errors="replace") as log:
            return [line.rstrip() for line in deque(log, maxlen=count)]


class Standby:
    """At most one process that has imported torch, which takes most of a restart's time, and waits to be needed.

    It has no address, no checkpoint and no part in the run before it is taken.
    """

    def __init__(self, start: Callable[[], Awaitable[Child]]) -> None:
        """Start without a process; `start` makes one that waits."""
        self._start = start
        self._child: Child | None = None

    async def refill(self) -> None:
        """Start a process to wait, unless one does already."""
        if self._child is None or self._child.has_ended:
            self._child = await self._start()

    def take(self) -> Child | None:
        """Return the process that waits and let it begin; None if there is none."""
        child, self._child = self._child, None
        if child is None or child.has_ended:
            return None
        child.begin()
        return child

    async def close(self) -> None:
        """End the process that waits."""
        child, self._child = self._child, None
        if child is not None:
            child.send("kill")
            await child.wait()
