"""Services forked from a process that has imported torch and gRPC: the product's own fork server (ADR 0050).

A test then starts one in a fraction of the processor time that imports take. What is forked is a child of the test's
process, with an environment and a command line like any other; only what the dynamic linker reads, such as LD_PRELOAD,
comes too late for it.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support.waiting import WAIT_S, wait_until
from tidemill.programs.child import PARENT_VARIABLE
from tidemill.programs.fork_server import TITLE_BYTES

_PR_SET_CHILD_SUBREAPER = 36
_EXAMPLES = str(Path(__file__).resolve().parents[2] / "examples")
"""On the path of what is forked, too, as pyproject.toml has it for the tests."""


class ForkedService:
    """A service, as `subprocess.Popen` would show it."""

    def __init__(self, pid: int) -> None:
        """Take over a child of this process."""
        self.pid = pid
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, -N if signal N ended it; None while it runs."""
        if self._exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._exit_code = os.waitstatus_to_exitcode(status) if pid else None
        return self._exit_code

    def wait(self, timeout: float) -> int:
        """Wait for its end; return its exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs after `timeout` seconds.
        """
        try:
            wait_until(lambda: self.poll() is not None, "the end of a process", timeout, longest_pause_s=0.02)
        except AssertionError:
            raise subprocess.TimeoutExpired(str(self.pid), timeout) from None
        assert self._exit_code is not None
        return self._exit_code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


class _ForkServer:
    """One for all tests of this process, with which it ends."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(WAIT_S)
        path = os.pathsep.join(filter(None, (_EXAMPLES, os.environ.get("PYTHONPATH"))))
        variables = {"OMP_NUM_THREADS": "1", PARENT_VARIABLE: str(os.getpid()), "PYTHONPATH": path}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidemill.programs.fork_server", "." * TITLE_BYTES],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **variables},
            )
        atexit.register(self._close)
        assert self._requests.recv(32) == b"ready"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it can be asked; it ends with the thread that started it."""
        return self._process.poll() is None

    def fork(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> int:
        order = {"module": module, "arguments": list(arguments), "environment": dict(environment)}
        read, word = os.pipe()
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that it is handed to this process
        try:
            socket.send_fds(self._requests, [json.dumps(order).encode()], [output.fileno(), read])
            pid = int(self._requests.recv(32))
            os.write(word, b"\n")
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            os.close(read)
            os.close(word)
        assert pid, "the fork server could not fork"
        return pid

    def _close(self) -> None:
        self._requests.close()
        self._process.kill()
        self._process.wait(WAIT_S)


_lock = threading.Lock()
_server: _ForkServer | None = None


def fork_service(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
) -> ForkedService:
    """Start a service from the fork server of this process, which the first call starts.

    Args:
        module: What `python -m` would run.
        arguments: Its command line.
        environment: Its environment variables, all of them.
        output: Where it writes.
    """
    global _server  # noqa: PLW0603 - it lives as long as the process
    with _lock:
        if _server is None or not _server.is_running:
            _server = _ForkServer()
        return ForkedService(_server.fork(module, arguments, environment, output))


def children() -> set[int]:
    """Return the child processes of this one, without the fork server that is kept for later tests."""
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    return {int(pid) for pid in found} - ({_server.pid} if _server is not None else set())
