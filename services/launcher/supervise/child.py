"""A running process of the cluster and its log file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from tidemill.atomic_files import is_disk_full, replacing
from tidemill.parent import PARENT_VARIABLE
from tidemill.programs.fork_server import Order
from tidemill.services.launcher.supervise.fork_server import ForkServer
from tidemill.services.launcher.supervise.service_spec import ServiceSpec

DEFAULTS = {
    # The video encoder is the only process that a service starts: gRPC need not survive in it, nor warn of it.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "SDL_VIDEODRIVER": "dummy",
}
"""Environment variables of a service, if they are not given."""

_SIGNALS = {"finish": signal.SIGUSR1, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}


class _Process(Protocol):
    """Interface of a process that `Child` needs, as asyncio has it."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, signal: int, /) -> None: ...


class Child:
    """A process in a separate session.

    Ctrl-C on the terminal so reaches the launcher only, which ends its children in order.
    """

    def __init__(self, process: _Process, log_file: Path, log_start: int = 0) -> None:
        """Take over a started process, whose log begins at `log_start`: what is before is of earlier ones."""
        self._process, self._log_file, self._log_start = process, log_file, log_start

    @classmethod
    async def start(
        cls, spec: ServiceSpec, log_file: Path, variables: Mapping[str, str], forks: ForkServer | None = None
    ) -> Child:
        """Start `python -m MODULE ARGUMENTS` with more environment variables, its output added to a log file.

        Called on the main thread only: the kernel ends the child when the thread that started it ends.

        Args:
            spec: What to start.
            log_file: Its log file.
            variables: The environment variables.
            forks: What starts the service, if it can; None for a separate program.

        Raises:
            OSError: The system has too few processes or open files left.
        """
        environment = DEFAULTS | os.environ | {PARENT_VARIABLE: str(os.getpid()), **variables}
        process: _Process | None = None
        with _opened(log_file) as log:
            log_start = log.tell()
            order = Order(
                spec.module, spec.arguments, environment, with_server=spec.forks, needs_torch=spec.needs_torch
            )
            if forks is not None:
                process = await forks.fork(order, log)
            if process is None:
                process = await asyncio.create_subprocess_exec(
                    *order.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
        if spec.nice:
            nice = min(os.getpriority(os.PRIO_PROCESS, 0) + spec.nice, 19)
            with contextlib.suppress(OSError):  # it has ended already
                os.setpriority(os.PRIO_PROCESS, process.pid, nice)
        return cls(process, log_file, log_start)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended."""
        return self._process.returncode is not None

    async def wait(self) -> int:
        """Wait for its end; return the exit code, -N if signal N killed it."""
        return await self._process.wait()

    def send(self, verb: str) -> None:
        """Send the signal for `finish`, `terminate` or `kill`; no effect on a process that has ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(_SIGNALS[verb])

    def bound_log(self, most_bytes: int) -> None:
        """Move the content of its log to `NAME.log.1` if there is more, in place of what was there.

        The process keeps writing to the end of the same file; lines written at that moment may be lost.
        """
        try:
            if self._log_file.stat().st_size <= most_bytes:
                return
            with replacing(self._log_file.with_name(f"{self._log_file.name}.1"), sync=False) as copy:
                shutil.copyfile(self._log_file, copy)
        except OSError as error:
            if not is_disk_full(error):  # a full disk has no room for the copy: the log is emptied all the same
                return
        with contextlib.suppress(OSError):
            os.truncate(self._log_file, 0)
            self._log_start = 0

    def last_lines(self, count: int) -> list[str]:
        """Return the newest lines of its log; none if it cannot be read."""
        with contextlib.suppress(OSError), self._log_file.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._log_start)
            return [line.rstrip() for line in deque(log, maxlen=count)]
        return []


def _opened(log_file: Path) -> IO[bytes]:
    """Open a log, also if somebody has removed its folder; if that fails, the service runs without a log."""
    with contextlib.suppress(OSError):
        log_file.parent.mkdir(exist_ok=True)
        return log_file.open("ab")
    return open(os.devnull, "ab")
