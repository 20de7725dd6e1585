"""A TCP proxy that can cut, hold back and refuse connections, for tests of what happens then."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

_PIECE_BYTES = 64 * 1024


class Proxy:
    """Passes bytes between clients and one server on this machine."""

    def __init__(self, target: str) -> None:
        """Listen on a free port and pass connections on to `target`, a `host:port`."""
        self.aim_at(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = self.refused = 0
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._answers_pass = threading.Event()
        self._answers_pass.set()
        self._refusing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def aim_at(self, target: str) -> None:
        """Pass new connections on to this `host:port`."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def cut(self) -> None:
        """Reset every connection; bytes underway are lost."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, do not finish
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    @contextlib.contextmanager
    def without_answers(self) -> Iterator[None]:
        """Hold back what the server sends while the block runs; then cut every connection."""
        self._answers_pass.clear()
        try:
            yield
        finally:
            self.cut()
            self._answers_pass.set()

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
        """Stop listening and cut every connection."""
        self._refusing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                self.refused += 1
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self.connections += 1
            with self._lock:
                self._sockets |= {client, server}
            threading.Thread(target=self._pass, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, self._answers_pass), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, gate: threading.Event | None) -> None:
        try:
            while piece := source.recv(_PIECE_BYTES):
                if gate is not None:
                    gate.wait()
                target.sendall(piece)
        except OSError:
            pass
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close."""
        self.close()
