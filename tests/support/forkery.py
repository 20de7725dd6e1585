"""A process that has imported the services and forks them: a service then starts in no time. `python -m` runs it.

Importing torch takes seconds of processor time, which a test that starts dozens of processes has not. What is forked is
a process like any other; those of one forkery share the seed of Python's hashes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import WAIT_S, wait_until
from tidemill.parent import PARENT_VARIABLE

_SERVICES = ("replay", "paramserver", "learner", "actor")


class ForkedProcess:
    """A service, as `subprocess.Popen` would show it."""

    def __init__(self, forkery: Forkery, pid: int) -> None:
        self._forkery, self._pid = forkery, pid
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, -N if signal N ended it; None while it runs."""
        if self._exit_code is None:
            self._exit_code = self._forkery.ask(poll=self._pid)
        return self._exit_code

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        wait_until(lambda: self.poll() is not None, f"the end of process {self._pid}")
        assert self._exit_code is not None
        return self._exit_code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self._pid, number)


class Forkery:
    """Starts services."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forkery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # gRPC is initialised in the children only
            env=os.environ | {"OMP_NUM_THREADS": "1", "GRPC_ENABLE_FORK_SUPPORT": "0"},
        )

    def start(self, service: str, arguments: Sequence[str], log: Path) -> ForkedProcess:
        """Start a service whose output is added to a log file."""
        return ForkedProcess(self, self.ask(service=service, arguments=list(arguments), log=str(log)))

    def ask(self, **question: Any) -> Any:  # noqa: ANN401 - see `_answer`
        """Return the answer of the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process; its services must have ended."""
        self._process.communicate(timeout=WAIT_S)  # closes its input


@contextmanager
def forkery() -> Iterator[Forkery]:
    """Yield one that ends with the block."""
    with contextlib.closing(Forkery()) as started:
        yield started


def _answer(question: dict[str, Any]) -> int | None:
    """Start a service and return its process id, or return the exit code of `poll`, None while it runs."""
    if "poll" in question:
        pid, status = os.waitpid(question["poll"], os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        os.environ[PARENT_VARIABLE] = str(parent)
        _run(question["service"], question["arguments"], question["log"])
    return pid


def _run(service: str, arguments: list[str], log: str) -> None:
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for number, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(descriptor, number)
        code = importlib.import_module(f"tidemill.services.{service}.__main__").main(arguments)
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Answer questions until there are no more."""
    for service in _SERVICES:
        importlib.import_module(f"tidemill.services.{service}.__main__")
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
