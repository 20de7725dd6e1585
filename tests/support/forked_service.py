"""Services forked from a process that has imported torch and gRPC: the product's own fork server (ADR 0050).

A test then starts one in a fraction of the processor time that imports take. What is forked is a child of the test's
process, with an environment and a command line like any other; only what the dynamic linker and Python read as they
start, such as LD_PRELOAD and PYTHONPATH, comes too late for it.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from tests.support.processes import children_of
from tests.support.waiting import WAIT_S
from tidemill import linux
from tidemill.programs import fork_client
from tidemill.programs.fork_client import DRAWING, ForkClient, ForkedPopen, started
from tidemill.programs.fork_server import Order

fork_client.READY_S = fork_client.ANSWER_S = 2 * WAIT_S  # without a server, which it gives up then, no test can start
_QUIET = {"GRPC_ENABLE_FORK_SUPPORT": "0", "OMP_NUM_THREADS": "1"}


class ForkedService(ForkedPopen):
    """A service whose output is read through a pipe, with standard error in it."""

    def __init__(self, pid: int, output: IO[str]) -> None:
        """Take over a child of this process and the pipe."""
        super().__init__(pid)
        self.stdout = output

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Wait for its end; return what it wrote and was not read yet.

        Raises:
            subprocess.TimeoutExpired: It still runs after `timeout` seconds.
        """
        read: list[str] = []
        if not self.stdout.closed:
            reader = threading.Thread(target=lambda: read.append(self.stdout.read()), daemon=True)
            reader.start()
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.stdout.close()
        self.wait(timeout)
        return "".join(read), None


_lock = threading.Lock()
_client: ForkClient | None = None


def _server() -> ForkClient:
    """Return the fork server for all tests of this process, with which it ends; the first call starts it."""
    global _client  # noqa: PLW0603 - it lives as long as the process
    with _lock:
        if _client is None or not _client.is_running:
            _client = ForkClient(os.environ | _QUIET, DRAWING)
            atexit.register(_client.close)
        return _client


def held_client(gate: Path) -> ForkClient:
    """Start a fork server that is not ready, except for what needs no torch, until a test writes to the pipe `gate`."""
    os.mkfifo(gate)
    return ForkClient(os.environ | {"GATE": str(gate)}, ["tests.process.gate"])


@contextmanager
def fork_server(variables: Mapping[str, str]) -> Iterator[ForkClient]:
    """Yield a fork server that has started with further variables, such as PYTHONPATH; it ends with the block."""
    with closing(ForkClient(os.environ | _QUIET | dict(variables), DRAWING)) as server:
        yield server


def fork_service(order: Order, output: IO[bytes], server: ForkClient | None = None) -> ForkedPopen:
    """Start a service from a fork server, else from that of this process; where there is none, as a program."""
    if not linux.CAN_FORK:
        process = started(order, output)
        process.returncode = 0  # its end is for the one who gets the process id
        return ForkedPopen(process.pid)
    service = (server or _server()).fork(order, output)
    assert service is not None, "the fork server could not fork"
    return service


def fork_read(
    module: str,
    arguments: Sequence[str],
    variables: Mapping[str, str] | None = None,
    directory: str = "",
    *,
    with_server: bool = False,
    server: ForkClient | None = None,
) -> ForkedService:
    """Start a service whose output is read, with more environment variables; `server` is as of `fork_service`."""
    environment = os.environ | dict(variables or {})
    read, write = os.pipe()
    with open(write, "wb") as output:
        forked = fork_service(Order(module, arguments, environment, directory, with_server), output, server)
    return ForkedService(forked.pid, open(read, encoding="utf-8"))


class ServiceProcess:
    """`python -m tidemill.services.NAME`, started and ended like a launcher would."""

    def __init__(self, name: str, *arguments: str, before: Sequence[str] = (), forked: bool = True) -> None:
        """Start it.

        Args:
            name: Of the service.
            arguments: Its command line.
            before: Words that go before its command, such as `ip netns exec NAME`.
            forked: Whether it is forked if there are no such words; its memory is then not its alone.
        """
        self._module, self.arguments = f"tidemill.services.{name}", list(arguments)
        self._before, self._is_forked = before, forked and not before
        self.process: ForkedService | subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        """Start it, or start it again after its end."""
        if self._is_forked:
            self.process = fork_read(self._module, self.arguments)
        else:
            command = [*self._before, sys.executable, "-m", self._module, *self.arguments]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def stop(self) -> tuple[int, str]:
        """Ask it to end; return its exit code and what else it wrote."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Wait until it ends by itself; return its exit code and what else it wrote."""
        said, _ = self.process.communicate(timeout=WAIT_S)
        return self.process.wait(), said

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=WAIT_S)


_before: set[int] = set()


def note_children() -> None:
    """Take the child processes that this one has by now, such as multiprocessing's, for none of the test's."""
    _before.clear()
    _before.update(children_of(os.getpid()))


def children() -> set[int]:
    """Return the child processes that are new since `note_children`, without the fork server of all tests."""
    return children_of(os.getpid()) - _before - ({_client.pid} if _client is not None else set())
