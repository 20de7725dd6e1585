"""A call in which each message of the client is answered by one of the server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from tidemill.errors import Unavailable
from tidemill.rpc.fork import OwnerProcess
from tidemill.rpc.status import translated

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class Dialogue(Generic[_Request, _Response]):
    """One bidirectional call, whose messages one thread sends and receives in turns."""

    def __init__(
        self, method: Callable[[Iterator[_Request]], Any], opening: _Request, server: str, client: str
    ) -> None:
        """Call.

        Args:
            method: Of the stub.
            opening: The first message.
            server: What answers, for messages.
            client: Name of the class whose object calls, for messages.
        """
        self._server, self._owner = server, OwnerProcess(client)
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._requests.put(opening)
        self._responses = method(self._each())

    def ask(self, request: _Request) -> _Response:
        """Send a message and wait for its answer.

        Raises:
            FailedPrecondition: This process was forked from the one that called.
            Unavailable: The call broke off.
            TidemillError: What the server answered instead.
        """
        self._requests.put(request)
        return self.hear()

    def hear(self) -> _Response:
        """Wait for the next answer; see `ask`."""
        self._owner.check()
        with translated():
            response: _Response | None = next(self._responses, None)
        if response is None:
            raise Unavailable(f"{self._server} ended the call")
        return response

    def finish(self) -> None:
        """Say that no further message comes."""
        self._requests.put(None)

    def drain(self, timeout_s: float) -> None:
        """Wait until the server has ended the call, which it does after `finish`, but no longer than that.

        A forked process does not wait.
        """
        if not self._owner.is_here:
            return
        ended = threading.Event()
        if self._responses.add_callback(ended.set):  # otherwise it has
            ended.wait(timeout_s)

    def end(self) -> None:
        """End the call, and the thread in which gRPC takes its requests; from any thread, also twice.

        A forked process leaves both alone.
        """
        if not self._owner.is_here:
            return
        self._responses.cancel()  # first: the server must not take it for the end that `finish` announces
        self.finish()

    def _each(self) -> Iterator[_Request]:
        while (request := self._requests.get()) is not None:
            yield request
