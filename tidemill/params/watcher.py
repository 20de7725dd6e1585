"""Watcher that keeps the newest parameters available to an acting process."""

from __future__ import annotations

import threading
from pathlib import Path

from tidemill.closing import Closing
from tidemill.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    TidemillError,
    Unauthenticated,
    Unimplemented,
)
from tidemill.logger import LateLogger
from tidemill.params.client import ParamsClient
from tidemill.params.version import LATEST, Params, Precision, check_tag
from tidemill.replay.argument_types import check_number
from tidemill.rpc.channel import Backoff
from tidemill.rpc.fork import OwnerProcess

_WAIT_S = 60.0
"""How long one fetch waits for a newer version before the next."""

_JOIN_S = 10.0

_FATAL = (InvalidArgument, FailedPrecondition, ResourceExhausted, Unimplemented, PermissionDenied, Unauthenticated)
"""Errors that a retry would repeat; everything else may be temporary."""

_AGAIN = "the versions are those of another run now, or follow a restored backup"
_log = LateLogger()


class ParamsWatcher(Closing):
    """One background thread that fetches each newer version and keeps only the newest bytes.

    It waits for the server and for the first version, reconnects by itself, and skips versions it is too slow
    for. An error that cannot pass is raised by the next `newest` or `wait`. Both raise FailedPrecondition
    in a forked process, which lacks the thread.

    Example:
        The version is the one that the example of `ParamsClient` publishes.

        >>> import tidemill
        >>> with tidemill.ParamsWatcher("127.0.0.1:7402") as watcher:
        ...     params = watcher.wait(timeout_s=10.0)
        ...     params is watcher.newest()  # the same until there is a newer one
        True
        >>> params.number
        1
    """

    def __init__(
        self,
        address: str,
        *,
        tag: str = LATEST,
        precision: Precision = Precision.HALF,
        newer_than: int = 0,
        folder: Path | None = None,
    ) -> None:
        """Start watching.

        Args:
            address: Address of the parameter server.
            tag: Tag to follow; it need not be set yet.
            precision: Preferred number format; full precision is returned when a version has no such encoding.
            newer_than: Only versions greater than this; 0 means any.
            folder: Where the server's folder of versions is mounted, if it is, as `ParamsClient` takes it.

        Raises:
            InvalidArgument: The tag is malformed.
        """
        check_tag(tag)
        self._owner = OwnerProcess("ParamsWatcher")
        self._client = ParamsClient(address, folder=folder)
        self._tag, self._precision, self._newer_than = tag, precision, newer_than
        self._is_failing = False
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._newest: Params | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="params-watcher", daemon=True)
        self._thread.start()

    def newest(self) -> Params | None:
        """Return the newest parameters fetched so far, or None before the first; never blocks.

        The same object comes until there is a newer one. That may have a smaller number: a server that was started with
        another folder numbers from 1 again, and its versions are then followed.
        """
        self._owner.check()
        with self._changed:
            self._raise()
            return self._newest

    def wait(self, timeout_s: float, *, newer_than: int = 0) -> Params | None:
        """Wait for parameters with a number greater than `newer_than`; None if none come within `timeout_s` seconds."""

        def is_over() -> bool:
            return self._is_newer(newer_than) or self._error is not None or self._closing.is_set()

        check_number("timeout_s", timeout_s)
        self._owner.check()
        with self._changed:
            self._changed.wait_for(is_over, min(timeout_s, threading.TIMEOUT_MAX))
            self._raise()
            return self._newest if self._is_newer(newer_than) else None

    def close(self) -> None:
        """End the thread. May be called twice."""
        if not self._owner.is_here:
            return
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._client.close()  # ends a fetch that is waiting
        self._thread.join(_JOIN_S)

    def _is_newer(self, newer_than: int) -> bool:
        return self._newest is not None and self._newest.number > newer_than

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        backoff = Backoff()
        try:
            while not self._closing.is_set():
                self._fetch(backoff)
        except BaseException as error:  # raised again in the owner's thread
            if not self._closing.is_set():
                with self._changed:
                    self._error = error
                    self._changed.notify_all()

    def _fetch(self, backoff: Backoff) -> None:
        newer_than = self._newer_than if self._newest is None else self._newest.version
        try:
            params = self._client.fetch(self._tag, newer_than=newer_than, wait_s=_WAIT_S, precision=self._precision)
        except _FATAL:
            raise
        except NotFound:
            self._closing.wait(backoff.next_s())  # the tag is not set yet
            return
        except TidemillError as error:
            self._report(error)
            self._closing.wait(backoff.next_s())
            return
        self._report(None)
        backoff.reset()
        if params is not None:
            self._keep(params)

    def _report(self, error: TidemillError | None) -> None:
        """Log the first of several failures, and their end."""
        if error is not None and not self._is_failing and not self._closing.is_set():
            _log.warning("cannot fetch parameters, retrying", kind=type(error).__name__, error=str(error))
        if error is None and self._is_failing:
            _log.info("parameters available again")
        self._is_failing = error is not None

    def _keep(self, params: Params) -> None:
        if self._newest is not None and params.number <= self._newest.number:
            _log.warning(_AGAIN, version=params.number, before=self._newest.number)
        with self._changed:
            self._newest = params
            self._changed.notify_all()
