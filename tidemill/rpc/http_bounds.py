"""Bounds of what callers of a small HTTP server may take: connections, and the time and bytes of a request."""

from __future__ import annotations

import io
import socket
import sys
import threading
import time
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_MAX_REQUEST_BYTES = 16 * 1024


class BoundedThreads(ThreadingMixIn, TCPServer):
    """Answers each connection in a separate thread, at most so many at a time."""

    daemon_threads = True
    max_connections: ClassVar[int]
    """Connections at the same time; further ones are closed at once."""

    def server_activate(self) -> None:
        """Begin to listen."""
        self._slots = threading.BoundedSemaphore(self.max_connections)
        super().server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver has it
        """Answer in a thread, or close the connection if there are too many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # the system has no more threads
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver has it
        """Answer, and make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver has it
        """Log nothing of a caller that went away, or was too slow."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class RequestReader(io.RawIOBase):
    """The bytes of one request, at most 16 KiB and within a time, however slowly they come."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        """Begin the time, in seconds; each part of the answer has as much."""
        self._connection, self._timeout_s = connection, timeout_s
        self._end_s, self._left = time.monotonic() + timeout_s, _MAX_REQUEST_BYTES

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read what has come; raise an OSError, which ends the connection, if that is too much or too late."""
        view = memoryview(buffer)[: self._left]
        if not view:
            raise ConnectionAbortedError(f"a request of more than {_MAX_REQUEST_BYTES} bytes")
        self._connection.settimeout(max(self._end_s - time.monotonic(), 1e-3))
        count = self._connection.recv_into(view)
        self._connection.settimeout(self._timeout_s)
        self._left -= count
        return count
