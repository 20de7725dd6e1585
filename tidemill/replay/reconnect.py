"""A thread that holds one conversation with a server after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc
import structlog

from tidemill.errors import NotFound, ResourceExhausted, TidemillError, Unavailable
from tidemill.rpc.backoff import Backoff
from tidemill.rpc.status import from_rpc_error

_log = structlog.get_logger()

_JOIN_S = 5.0


class ReconnectLoop:
    """Calls `run_stream` in a thread, again and again with growing pauses, until closed or refused for good."""

    def __init__(
        self, name: str, address: str, run_stream: Callable[[Backoff], None], failed: Callable[[BaseException], None]
    ) -> None:
        """Prepare; `start` starts the thread.

        Args:
            name: Of the thread.
            address: Of the server, for the log.
            run_stream: One conversation; returns when the server ends it, raises when it breaks. Resets the
                pauses it is given once the server has answered.
            failed: Told once what ended the thread for good.
        """
        self._address, self._run_stream, self._failed = address, run_stream, failed
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; `run_stream` must return once `closed` is set and its call is cancelled."""
        self.closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        backoff = Backoff(limit_s=2.0)
        try:
            while not self.closed.is_set():
                self._attempt(backoff)
                self.closed.wait(backoff.next_s())
        except BaseException as error:  # handed to the owner, who raises it
            self._failed(error)

    def _attempt(self, backoff: Backoff) -> None:
        try:
            self._run_stream(backoff)
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            if not _may_pass(failure):
                raise failure from error
            self._tell(failure)
        except (Unavailable, NotFound) as failure:
            self._tell(failure)

    def _tell(self, failure: TidemillError) -> None:
        if not self.closed.is_set():
            _log.warning(
                "no conversation with the replay service; trying again", address=self._address, why=str(failure)
            )


def _may_pass(failure: TidemillError) -> bool:
    """Return whether a later attempt may succeed: the server is away, not ready or full, or the call broke."""
    return isinstance(failure, Unavailable | NotFound | ResourceExhausted) or type(failure) is TidemillError
