"""Client of the process that forks the launcher's services (`tidemill.programs.fork_server`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import IO

from tidemill import linux
from tidemill.programs.fork_client import ForkClient
from tidemill.programs.fork_server import READY, Order


class ForkedProcess:
    """A process that was forked for this one, its parent."""

    def __init__(self, pid: int) -> None:
        """Take over a child of this process; called in the event loop."""
        self.pid = pid
        self.returncode: int | None = None
        """Its exit code, -N if signal N killed it; None while it runs."""
        self._descriptor = linux.open_process(pid)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._reap)

    async def wait(self) -> int:
        """Wait for its end; return the exit code."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal; raises ProcessLookupError if it has ended."""
        linux.signal_process(self._descriptor, number)

    def _reap(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()


class ForkServer:
    """Starts services, each in a fraction of the time that importing torch takes.

    It is a help, not a condition: when it dies, is frozen or cannot be had, `fork` returns None, and services are
    started as separate programs.
    """

    def __init__(self, environment: Mapping[str, str], client: ForkClient | None = None) -> None:
        """Start nothing yet.

        Args:
            environment: Of the server, all of it.
            client: The first server, if it was started before.
        """
        self._environment, self._client = environment, client

    def start(self) -> None:
        """Start it, if it can be had, or again if it has ended or was given up; `fork` waits until it is ready."""
        if self._client is not None and self._client.is_running:
            return
        self.close()
        with contextlib.suppress(OSError):  # such as too many open files
            self._client = ForkClient(self._environment)

    async def fork(self, order: Order, output: IO[bytes]) -> ForkedProcess | None:
        """Return a new process that writes to `output`; None if there is none to be had.

        Raises:
            OSError: The system has too few open files left.
        """
        if self._client is None:
            return None
        # in a thread, for it waits; the kernel makes the process a child of the main thread all the same
        forked = await asyncio.to_thread(self._client.fork, order, output)
        if forked is None:
            return None
        try:
            return ForkedProcess(forked.pid)
        except OSError:
            forked.kill()
            forked.wait()
            raise

    def give_up(self) -> None:
        """Let nobody wait for it any longer if it is not ready yet."""
        if self._client is not None and READY not in self._client.said:
            with contextlib.suppress(OSError):  # it has ended
                self._client.requests.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it; what it has forked keeps running. May be called twice."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
