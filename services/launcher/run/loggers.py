"""Processes that send a run's records to loggers while it trains, one for each of `launcher.loggers`."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Self

from tidemill.config.services import LOGGERS_STOP_S
from tidemill.installation import command_name
from tidemill.parent import PARENT_VARIABLE
from tidemill.programs.fork_client import Program, started, wait_or_kill
from tidemill.programs.fork_server import Order
from tidemill.services.launcher.run.folder import RunFolder, log_file

_STOP_S = 5.0


class LoggerProcesses:
    """`tidemill log` for each logger of a run. They end by themselves once the run's folder is unlocked.

    They are not part of the cluster: one that fails is reported at the end, and what it has not sent waits in the
    folder.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._children: dict[str, Program] = {}
        self._path = Path()

    def start(self, names: tuple[str, ...], folder: RunFolder) -> None:
        """Start one for each name; the folder is locked and has its config.yaml."""
        self._path = folder.path
        # They outlive the launcher, and must not take the parent of the launcher for their own.
        environment = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE}
        for name in names:
            # A separate session: Ctrl-C is meant for the launcher, and loggers still have to send the last records.
            words = ["log", str(folder.path), "--to", name]
            order = Order("tidemill.services.launcher", words, environment, ends_in_order=True)
            with log_file(folder.path, f"log-{name.replace(':', '.')}").open("ab") as output:
                self._children[name] = started(order, output)

    def wait(self, bound_s: float = LOGGERS_STOP_S) -> list[str]:
        """Wait until all have sent the last records; return a line for each that could not."""
        deadline_s = time.monotonic() + bound_s
        return [line for name, child in self._children.items() if (line := self._end(name, child, deadline_s))]

    def _end(self, name: str, child: Program, deadline_s: float) -> str:
        again = f"`{command_name()} log {self._path} --to {name}` continues; see {self._path / 'logs'}"
        try:
            code = child.wait(max(deadline_s - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            _stop(child)
            return f"logger {name}: stopped before everything was sent. {again}"
        return f"logger {name}: exited with code {code}. {again}" if code else ""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop those that still run."""
        for child in self._children.values():
            _stop(child)


def _stop(child: Program) -> None:
    """Ask a process to end, and kill it if it does not."""
    child.terminate()
    wait_or_kill(child, _STOP_S)
