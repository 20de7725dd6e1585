"""One streaming call to a replay server, opened again when it breaks: what samplers and appenders have in common."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc

from tidemill.errors import NotFound, Reason, ResourceExhausted, TidemillError, Unavailable
from tidemill.logger import LateLogger
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.channel import MAX_MESSAGE_BYTES, Backoff, open_channel
from tidemill.rpc.status import from_rpc_error

Request = TypeVar("Request")
Response = TypeVar("Response")

_JOIN_S = 5.0
_USUAL_WAITS = 6
"""Attempts, some ten seconds, for which a server or a table that was never there is no news: a cluster is starting."""

_log = LateLogger()


class ReconnectingCall(Generic[Request, Response]):
    """Holds one call to a server and opens another when it ends, after a pause that grows until the server answers.

    A background thread opens the calls and runs every callback, one at a time: for each call `prepare`, `opened`,
    `answered` for each response, and `lost`. What is sent after `lost` and before the next `opened` may be dropped: the
    owner keeps what it has to send again. `send` and `cut` never block.

    Attributes:
        closed: Set by `stop` and `close`.
        last_failure: What ended the call before; None since the server last answered.
    """

    def __init__(  # noqa: PLR0913 - each is one decision of the caller
        self,
        name: str,
        address: str,
        method: Callable[[replay_pb2_grpc.ReplayServiceStub], grpc.StreamStreamMultiCallable[Request, Response]],
        *,
        opened: Callable[[], None],
        answered: Callable[[Response], None],
        lost: Callable[[], None],
        failed: Callable[[BaseException], None],
        prepare: Callable[[], None] = lambda: None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        pause_limit_s: float = 2.0,
    ) -> None:
        """Prepare; `start` starts the thread.

        Args:
            name: Of the thread.
            address: Of the server.
            method: Which of the service's calls it is.
            opened: Called when a call has been opened, before the server has answered; may send.
            answered: Called with each response.
            lost: Called when the call is over, however it ended; what was not answered never will be.
            failed: Called at most once and last, with an error that another attempt does not cure.
            prepare: Called before each attempt; what it raises counts as if the call had.
            max_message_bytes: Bytes of the largest message that is sent or taken.
            pause_limit_s: Longest pause between two attempts.
        """
        self._address = address
        self._opened, self._answered, self._lost, self._failed = opened, answered, lost, failed
        self._prepare, self._pause_limit_s = prepare, pause_limit_s
        self.closed = threading.Event()
        self.last_failure: TidemillError | None = None
        self._silent_attempts = 0  # before the first answer
        self._answers = 0  # of the present call
        self._has_answered = False  # any call
        self._channel = open_channel(address, max_message_bytes=max_message_bytes)
        self._method = method(replay_pb2_grpc.ReplayServiceStub(self._channel))
        self._lock = threading.Lock()  # guards the two below
        self._call: grpc.Call | None = None
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def send(self, request: Request) -> None:
        """Queue a message of the present call; the owner bounds how many there are."""
        self._requests.put(request)

    def cut(self) -> None:
        """End the present call, such as one whose server is silent; another one follows."""
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def stop(self) -> None:
        """End the present call, with no other to follow; does not wait for the thread."""
        self.closed.set()
        self.cut()

    def half_close(self) -> None:
        """Send what is queued and nothing more, and open no other call; the server ends this one when it has all."""
        self.closed.set()
        with self._lock:
            self._requests.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait at most so many seconds for the thread to end."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def close(self) -> None:
        """End the call and the thread, within a bounded time. May be called twice."""
        self.stop()
        self.join(_JOIN_S)
        self._channel.close()

    def _run(self) -> None:
        backoff = Backoff(limit_s=self._pause_limit_s)
        try:
            while not self.closed.is_set():
                self._attempt(backoff)
                self.closed.wait(backoff.next_s())
        except BaseException as error:  # handed to the owner, who raises it
            if not self.closed.is_set():  # what is closed under a thread's hands raises too
                self._failed(error)

    def _attempt(self, backoff: Backoff) -> None:
        self._answers = 0
        try:
            self._prepare()
            self._hold()
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            if not _may_pass(failure):
                raise failure from error
            self._report(failure)
            if isinstance(failure, ResourceExhausted) and self._answers == 1:
                return  # it answered the opening alone, and everything is sent again
        except (Unavailable, NotFound) as failure:
            self._report(failure)
        if self._answers:
            backoff.reset()

    def _hold(self) -> None:
        """Hold one call until it ends; raises what it ended with."""
        with self._lock:
            if self.closed.is_set():
                return
            requests = self._requests = queue.SimpleQueue()
            call = self._call = self._method(iter(requests.get, None))  # iterated in a thread of gRPC's own
        try:
            self._opened()
            for response in call:
                self.last_failure = None
                self._answers += 1
                self._has_answered = True
                self._answered(response)
        finally:
            with self._lock:
                self._call = None
            requests.put(None)
            call.cancel()
            self._lost()

    def _report(self, failure: TidemillError) -> None:
        self.last_failure = failure
        if self.closed.is_set():
            return
        if self._has_answered:
            _log.warning("replay stream lost, reconnecting", address=self._address, reason=str(failure))
            return
        self._silent_attempts += 1
        log = _log.info if self._silent_attempts < _USUAL_WAITS else _log.warning
        log("waiting for the replay service", address=self._address, reason=str(failure))


def _may_pass(failure: TidemillError) -> bool:
    """True if a later attempt may succeed: the server is away, not ready or full, or the call broke."""
    if failure.reason is Reason.TOO_LARGE:
        return False
    return isinstance(failure, Unavailable | NotFound | ResourceExhausted) or type(failure) is TidemillError
