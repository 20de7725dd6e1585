"""A TCP proxy that can cut, delay, swallow, black-hole and refuse connections, for tests of what happens then."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

_PIECE_BYTES = 64 * 1024
_RESET = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER of 0 s: a socket that is closed resets its connection."""


class Proxy:
    """Passes bytes between clients and one server on this machine; one thread serves every connection.

    Attributes:
        address: Where clients connect, `host:port`.
        connections: How many were passed on.
        refused: How many were closed at once.
    """

    def __init__(self, target: str) -> None:
        """Listen on a free port and pass connections on to `target`, a `host:port`."""
        self.aim_at(target)
        self.connections = self.refused = 0
        self._links: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._delay_s, self._answers_pass, self._refusing = 0.0, True, False
        self._bytes_left: int | None = None
        self._passable = asyncio.Event()
        self._passable.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        serving = asyncio.start_server(self._link, sock=self._listener, limit=_PIECE_BYTES)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result(10.0)

    def aim_at(self, target: str) -> None:
        """Pass new connections on to this `host:port`."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def cut(self) -> None:
        """Reset every connection; bytes underway are lost."""
        self._do(self._reset_all)

    def cut_after(self, size_bytes: int) -> None:
        """Reset every connection once so many more bytes have passed, in either direction: in the middle of a message.

        Connections after that pass as before.
        """
        self._do(lambda: setattr(self, "_bytes_left", size_bytes))

    @property
    def is_about_to_cut(self) -> bool:
        """Whether the bytes that `cut_after` lets pass have not all come."""
        return self._bytes_left is not None

    @contextlib.contextmanager
    def without_answers(self) -> Iterator[None]:
        """Lose what the server sends while the block runs; then cut every connection."""
        self._do(lambda: setattr(self, "_answers_pass", False))
        try:
            yield
        finally:
            self._do(self._reset_all)
            self._do(lambda: setattr(self, "_answers_pass", True))

    @contextlib.contextmanager
    def delayed(self, seconds: float) -> Iterator[None]:
        """Hold every piece of up to 64 KiB for so long while the block runs."""
        self._delay_s = seconds
        try:
            yield
        finally:
            self._delay_s = 0.0

    @contextlib.contextmanager
    def black_hole(self) -> Iterator[None]:
        """Let nothing pass while the block runs, an end of a connection neither; then all that was held back passes.

        Connections are taken meanwhile, as by a machine whose other end of the cable was pulled out.
        """
        self._do(self._passable.clear)
        try:
            yield
        finally:
            self._do(self._passable.set)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Cut every connection and take no new one while the block runs."""
        self._refusing = True
        self.cut()
        try:
            yield
        finally:
            self._refusing = False

    def close(self) -> None:
        """Stop listening and cut every connection. May be called twice."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    def _do(self, action: Callable[[], object]) -> None:
        """Let the thread do something, and wait until it has."""

        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(10.0)

    async def _end(self) -> None:
        self._refusing = True
        self._loop.remove_reader(self._listener)  # a connection just accepted needs the server open until it is refused
        self._reset_all()
        this = asyncio.current_task()
        while others := asyncio.all_tasks() - {this}:
            for task in tuple(self._links):
                task.cancel()
            await asyncio.wait(others)
        self._server.close()

    def _reset_all(self) -> None:
        self._bytes_left = None
        for writers in self._links.values():
            for writer in writers:
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()

    async def _link(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self._refusing:
            self.refused += 1
            to_client.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = [to_client]
        try:
            await self._passable.wait()
            server, to_server = await asyncio.open_connection(*self._target, limit=_PIECE_BYTES)
            self._links[task].append(to_server)
            self.connections += 1
            await self._pass_both(client, to_client, server, to_server)
        except (OSError, asyncio.CancelledError):  # the server is away, or the proxy closes
            pass
        finally:
            for writer in self._links.pop(task):
                writer.close()

    async def _pass_both(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        """Pass bytes until either end has ended."""
        directions = [
            asyncio.ensure_future(self._pass(client, to_server, is_answer=False)),
            asyncio.ensure_future(self._pass(server, to_client, is_answer=True)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(_PIECE_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._passable.wait()
                if is_answer and not self._answers_pass:
                    continue
                target.write(self._taken(piece))
                await target.drain()
                if self._bytes_left == 0:
                    self._reset_all()
        await self._passable.wait()

    def _taken(self, piece: bytes) -> bytes:
        """Return the part of some bytes that may pass."""
        if self._bytes_left is None:
            return piece
        passed = piece[: self._bytes_left]
        self._bytes_left -= len(passed)
        return passed

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close."""
        self.close()
