"""Client of the process that forks the launcher's services (`tidemill.programs.fork_server`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import IO

from tidemill import linux
from tidemill.programs.fork_client import ANSWER_S, READY_S, ForkClient, sent
from tidemill.programs.fork_server import MAX_MESSAGE_BYTES, READY, READY_WITHOUT_TORCH, Order


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

    def __init__(
        self, environment: Mapping[str, str], client: ForkClient | None = None, answer_s: float = ANSWER_S
    ) -> None:
        """Start nothing yet.

        Args:
            environment: Of the server, all of it.
            client: The first server, if it was started before.
            answer_s: Longest wait for a process, in seconds, before the server is given up.
        """
        self._environment, self._first, self._answer_s = environment, client, answer_s
        self._client: ForkClient | None = None
        self._ready: dict[bytes, asyncio.Future[bool]] = {}
        self._answer: asyncio.Future[bytes] | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Start it, if it can be had, or again if it has ended or was given up; `fork` waits until it is ready."""
        if self._client is not None and self._client.is_running and self._may_fork:
            return
        await self.close()
        try:
            self._client, self._first = self._first or ForkClient(self._environment), None
        except OSError:  # such as too many open files
            return
        self._client.requests.setblocking(False)
        loop = asyncio.get_running_loop()
        self._ready = {said: loop.create_future() for said in (READY_WITHOUT_TORCH, READY)}
        for said in self._client.said:
            self._ready[said].set_result(True)
        loop.add_reader(self._client.requests, self._on_message, self._client.requests)

    async def fork(self, order: Order, output: IO[bytes]) -> ForkedProcess | None:
        """Return a new process that writes to `output`; None if there is none to be had."""
        message = order.packed()
        async with self._lock:
            is_ready = self._ready.get(READY if order.needs_torch else READY_WITHOUT_TORCH)
            if is_ready is None or len(message) > MAX_MESSAGE_BYTES:
                return None
            try:
                may_ask = await asyncio.wait_for(asyncio.shield(is_ready), READY_S)
                return await self._fork(message, self._client.requests, output) if may_ask and self._client else None
            except OSError:  # TimeoutError is one
                await self.close()
                return None

    def give_up(self) -> None:
        """Let nobody wait for it any longer if it is not ready yet."""
        for is_ready in self._ready.values():
            if not is_ready.done():
                is_ready.set_result(False)

    async def close(self) -> None:
        """End it; what it has forked keeps running. May be called twice."""
        self.give_up()
        self._ready = {}
        client, self._client = self._client, None
        if client is not None:
            if client.requests.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(client.requests)
            client.close()

    @property
    def _may_fork(self) -> bool:
        return bool(self._ready) and all(not ready.done() or ready.result() for ready in self._ready.values())

    def _on_message(self, requests: socket.socket) -> None:
        message = b""
        with contextlib.suppress(OSError):
            message = requests.recv(32)
        if (is_ready := self._ready.get(message)) is not None:
            if not is_ready.done():
                is_ready.set_result(True)
            return
        if not message:  # it has ended
            asyncio.get_running_loop().remove_reader(requests)
            self.give_up()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    async def _fork(self, message: bytes, requests: socket.socket, output: IO[bytes]) -> ForkedProcess | None:
        self._answer = asyncio.get_running_loop().create_future()
        with sent(message, requests, output) as word:
            pid = int(await asyncio.wait_for(self._answer, self._answer_s) or 0)
            child = ForkedProcess(pid) if pid else None
            os.write(word, b"\n")
            return child
