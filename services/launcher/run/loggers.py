"""Processes that send a run's records to loggers while it trains, one for each of `launcher.loggers`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tidemill.installation import command_name
from tidemill.parent import PARENT_VARIABLE
from tidemill.services.launcher.run.folder import RunFolder, log_file

_LAST_S = 60.0
_STOP_S = 5.0


class LoggerProcesses:
    """`tidemill log` for each logger of a run. They end by themselves once the run's folder is unlocked.

    They are not part of the cluster: one that fails is reported at the end, and what it has not sent waits in the
    folder.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._path = Path()

    def start(self, names: tuple[str, ...], folder: RunFolder) -> None:
        """Start one for each name; the folder is locked and has its config.yaml."""
        self._path = folder.path
        # They outlive the launcher, and must not take the parent of the launcher for their own.
        environment = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE}
        for name in names:
            # A separate session: Ctrl-C is meant for the launcher, and loggers still have to send the last records.
            command = (sys.executable, "-P", "-m", "tidemill.services.launcher", "log", str(folder.path), "--to", name)
            with log_file(folder.path, f"log-{name.replace(':', '.')}").open("ab") as output:
                self._children[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )

    def wait(self, bound_s: float = _LAST_S) -> list[str]:
        """Wait until all have sent the last records; return a line for each that could not."""
        deadline_s = time.monotonic() + bound_s
        return [line for name, child in self._children.items() if (line := self._end(name, child, deadline_s))]

    def _end(self, name: str, child: subprocess.Popen[bytes], deadline_s: float) -> str:
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


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and kill it if it does not."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
