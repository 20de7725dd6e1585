"""Client of a fork server (`tidemill.programs.fork_server`), with an interface like that of `subprocess`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from tidemill import linux
from tidemill.parent import PARENT_VARIABLE
from tidemill.programs.fork_server import (
    MAX_MESSAGE_BYTES,
    READY,
    READY_WITHOUT_TORCH,
    ROOM_BYTES,
    ROOM_VARIABLE,
    TITLE_BYTES,
    Order,
)

READY_S = 60.0
"""Longest wait for a server that imports, in seconds."""

ANSWER_S = 10.0
"""Longest wait for a process, in seconds, before the server is given up."""

DRAWING = ("matplotlib.backends.backend_agg", "matplotlib.figure")
"""What an evaluator imports at the end of its run, for the curve; a server of many runs may have it before."""


def server_command(further: Sequence[str] = ()) -> list[str]:
    """Return the command of a server, whose standard input is the socket; it imports further modules, too."""
    # -P: no file of the working directory shadows a module
    return [sys.executable, "-P", "-m", "tidemill.programs.fork_server", *further, "." * TITLE_BYTES]


@contextmanager
def sent(message: bytes, requests: socket.socket, output: IO[bytes]) -> Iterator[int]:
    """Send an order, for a child of this process; yield the pipe to which the word is written that lets it begin.

    Without it, a process that this one gave up ends at once.
    """
    read, word = os.pipe()
    linux.adopt_orphans(True)
    try:
        socket.send_fds(requests, [message], [output.fileno(), read])
        yield word
    finally:
        linux.adopt_orphans(False)
        os.close(read)
        os.close(word)


_given: list[tuple[socket.socket, int]] = []


def give_server(requests: socket.socket, pid: int) -> None:
    """Leave this process a server, which is its child, for the first who takes it."""
    _given.append((requests, pid))


def take_server() -> tuple[socket.socket, int] | None:
    """Return the socket and process id of the server that this process was given; None if there is none any more."""
    return _given.pop() if _given else None


class ForkedPopen:
    """A child process that was forked, as `subprocess.Popen` would show it."""

    def __init__(self, pid: int) -> None:
        """Take over a child of this process."""
        self.pid = pid
        self.returncode: int | None = None
        """Its exit code as `poll` or `wait` found it, -N if signal N ended it; None while it runs."""
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs after `timeout` seconds.
        """
        if self.poll() is None:
            linux.wait_for_end(self.pid, timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


Program = ForkedPopen | subprocess.Popen[bytes]


def started(order: Order, output: IO[bytes], forks: ForkClient | None = None) -> Program:
    """Start a process in a separate session, whose output goes to a file; fork it if it can be.

    Ctrl-C on the terminal so reaches this process only, which ends it.
    """
    if forks is not None and (forked := forks.fork(order, output)):
        return forked
    return subprocess.Popen(
        order.command(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=order.environment,
        cwd=order.directory or None,
        start_new_session=True,
    )


def wait_or_kill(process: ForkedPopen | subprocess.Popen[Any], within_s: float) -> bool:
    """Wait for the end of a process; kill it after some seconds, and return whether that was necessary."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


class ForkClient:
    """A server that this process has started, or was given."""

    def __init__(self, environment: Mapping[str, str], further: Sequence[str] = ()) -> None:
        """Take the server that this process was given; else start one, which `fork` waits for.

        Args:
            environment: Of a server that is started, all of it.
            further: Modules that it imports beside those that every server does.
        """
        self._lock = threading.Lock()
        self.said = {READY_WITHOUT_TORCH, READY}
        """What it has said of itself so far."""
        if (given := take_server()) is not None:
            self.requests, pid = given
            self._process: Program = ForkedPopen(pid)
            return
        self.said = set()
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as on_error, theirs:
            on_error.callback(self.requests.close)
            self._process = subprocess.Popen(
                server_command(further),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**environment, PARENT_VARIABLE: str(os.getpid()), ROOM_VARIABLE: "." * ROOM_BYTES},
                start_new_session=True,
            )
            on_error.pop_all()

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a server to be asked; it ends with the thread that started it."""
        return self.requests.fileno() >= 0 and self._process.poll() is None

    def fork(self, order: Order, output: IO[bytes]) -> ForkedPopen | None:
        """Return a new process that writes to `output`; None if none is to be had: then the server is given up."""
        message = order.packed()
        with self._lock:
            if len(message) > MAX_MESSAGE_BYTES or not self.is_running:
                return None
            try:
                return self._fork(message, output, READY if order.needs_torch else READY_WITHOUT_TORCH)
            except OSError:  # TimeoutError is one
                self.close()
                return None

    def close(self) -> None:
        """End the server; what it has forked keeps running. May be called twice."""
        self.requests.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def _fork(self, message: bytes, output: IO[bytes], when: bytes) -> ForkedPopen | None:
        self.requests.settimeout(READY_S)
        while when not in self.said:
            self.said.add(self._received())
        self.requests.settimeout(ANSWER_S)
        with sent(message, self.requests, output) as word:
            while (answer := self._received()) in (READY_WITHOUT_TORCH, READY):
                self.said.add(answer)
            pid = int(answer)
            if pid:
                os.write(word, b"\n")
        return ForkedPopen(pid) if pid else None

    def _received(self) -> bytes:
        if not (message := self.requests.recv(32)):
            raise ConnectionResetError("the fork server has ended")
        return message


def given_client() -> ForkClient | None:
    """Return a client of the server that this process was given; None without one."""
    return ForkClient({}) if _given else None
