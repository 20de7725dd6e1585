"""Client channels, with the options that make a dead or frozen peer known within seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from tidemill.closing import Closing
from tidemill.logger import LateLogger
from tidemill.rpc.client_security import channel_credentials, name_options, token_interceptors
from tidemill.rpc.fork import OwnerProcess
from tidemill.rpc.options import client_options
from tidemill.rpc.settings import MEBIBYTE


class Backoff:
    """Pauses that double from `first_s` up to `limit_s`, in seconds."""

    def __init__(self, first_s: float = 0.1, limit_s: float = 5.0) -> None:
        self._first_s, self._limit_s = first_s, limit_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return the next pause."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._limit_s)
        return pause_s

    def reset(self) -> None:
        """Begin again with the first pause, after a success."""
        self._next_s = self._first_s


DEADLINE_S = 10.0
"""Deadline of a unary call unless the caller knows better, in seconds."""

CLOSE_S = 2.0
"""Longest wait for a channel to close, in seconds."""

MAX_MESSAGE_BYTES = 64 * MEBIBYTE

_NEVER_S = 1e9
"""Longest deadline of a call, in seconds: gRPC takes one that its clock cannot hold for a moment in the past."""

_log = LateLogger()


def open_channel(address: str, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> grpc.Channel:
    """Return a channel to `host:port`, `dns:///name:port` or `unix:///path`; it connects on first use.

    Its `close` returns within `CLOSE_S`, whatever the peer does. TLS and token are those of the environment.

    Raises:
        ConfigError: A file that the environment names is missing or wrong, and was so whenever this process read it,
            or a token would travel in plaintext.
    """
    interceptors, credentials = token_interceptors(address), channel_credentials(address)
    if credentials is None:
        channel = grpc.insecure_channel(address, options=client_options(max_message_bytes))
    else:
        channel = grpc.secure_channel(address, credentials, [*client_options(max_message_bytes), *name_options()])
    bounded = BoundedChannel(channel, address)  # innermost: what adds the token asks it for each call
    return grpc.intercept_channel(bounded, *interceptors) if interceptors else bounded


def open_foreign_channel(address: str) -> grpc.Channel:
    """Return a channel, like that of `open_channel`, to a server of another program: in plaintext, without a token."""
    return BoundedChannel(grpc.insecure_channel(address, options=client_options(MAX_MESSAGE_BYTES)), address)


def open_aio_channel(address: str) -> grpc.aio.Channel:
    """Return the asyncio twin of `open_channel`, which brings no token: it is for health checks."""
    options = client_options(MAX_MESSAGE_BYTES)
    if (credentials := channel_credentials(address)) is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, [*options, *name_options()])


class BoundedChannel(Closing, grpc.Channel):
    """A channel whose `close` takes a bounded time, and which may be closed while other threads begin calls.

    In a process forked from the one that made it every call raises FailedPrecondition and `close` does nothing: gRPC's
    own call would hang there past its deadline, or end the process by a segmentation fault.

    gRPC's own `close` was seen to hang beside a frozen peer on a Unix socket while a full flow-control window was
    pending. It is then left to a thread that ends with the process, or when the peer's connection does.

    Asked for calls once it is closed, gRPC's own ends the process by a segmentation fault (1.85, see
    https://github.com/grpc/grpc/pull/43455): here that is a ValueError, as for a call that is made too late.
    """

    def __init__(self, channel: grpc.Channel, address: str, *, close_s: float = CLOSE_S) -> None:
        """Wrap a channel.

        Args:
            channel: The channel; calls go to it directly.
            address: Of the peer, for the log.
            close_s: Longest wait for it to close, in seconds.
        """
        self._channel, self._address, self._close_s = channel, address, close_s
        self._owner = OwnerProcess(f"connection to {address}")
        self._closing: threading.Thread | None = None
        self._lock = threading.Lock()  # guards it while calls are prepared

    def close(self) -> None:
        """End every call and close the connection, or leave that to a thread. May be called twice."""
        if not self._owner.is_here:
            return
        with self._lock:
            if self._closing is not None:
                return
            self._closing = threading.Thread(target=self._channel.close, name=f"close-{self._address}", daemon=True)
        try:
            self._closing.start()
        except RuntimeError as error:
            if threading.main_thread().is_alive():  # there are too many threads
                message = "connection stays open until the process ends"
                _log.warning(message, address=self._address, reason=str(error))
            return  # Python ends, and may start no thread for what `atexit` calls: it goes with the process
        self._closing.join(self._close_s)
        if self._closing.is_alive():
            message = "connection did not close in time; a background thread closes it"
            _log.warning(message, address=self._address, after_s=self._close_s)

    def subscribe(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - as in grpc.Channel, here and below
        """Report the state of the connection to a callback."""
        self._owner.check()
        self._channel.subscribe(*arguments, **named)

    def unsubscribe(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401
        """Remove a callback."""
        self._channel.unsubscribe(*arguments, **named)

    def unary_unary(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """Return a callable for such calls."""
        return self._prepared(self._channel.unary_unary, *arguments, **named)

    def unary_stream(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """Return a callable for such calls."""
        return self._prepared(self._channel.unary_stream, *arguments, **named)

    def stream_unary(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """Return a callable for such calls."""
        return self._prepared(self._channel.stream_unary, *arguments, **named)

    def stream_stream(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """Return a callable for such calls."""
        return self._prepared(self._channel.stream_stream, *arguments, **named)

    def _prepared(self, prepare: Callable[..., Any], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        self._owner.check()
        with self._lock:
            if self._closing is not None:
                raise ValueError(f"a call on the closed channel to {self._address}")
            return _OwnCalls(prepare(*arguments, **named), self._owner)


class _OwnCalls:
    """Calls of one method, for the process that the channel belongs to; a deadline beyond `_NEVER_S` is none."""

    def __init__(self, calls: Any, owner: OwnerProcess) -> None:  # noqa: ANN401
        self._calls, self._owner = calls, owner

    def __call__(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        return self._calls(*arguments, **self._checked(named))

    def with_call(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        return self._calls.with_call(*arguments, **self._checked(named))

    def future(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        return self._calls.future(*arguments, **self._checked(named))

    def _checked(self, named: dict[str, Any]) -> dict[str, Any]:
        self._owner.check()
        timeout_s = named.get("timeout")
        return named | {"timeout": None} if timeout_s is not None and timeout_s > _NEVER_S else named
