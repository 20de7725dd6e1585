"""The one server interceptor: requests are decoded, exceptions become status codes, calls become metrics."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from prometheus_client import Counter, Histogram

from tidemill.errors import InvalidArgument, Reason, TidemillError
from tidemill.logger import LateLogger
from tidemill.rpc.access import Refusal
from tidemill.rpc.status import shortened, to_status, trailers

Decode = Callable[[bytes], Any]
"""Returns the message of its bytes; raises DecodeError."""

LOG_EVERY_S = 10.0
"""Least time between two lines about requests that cannot be decoded, in seconds."""

REFUSED = "refused"
"""The `grpc_type` of a call that its token does not allow: of which kind its method is was not looked at."""

_MOST_BYTES = {"grpc.health.v1.Health": 1024}
"""Longest request of the services that anybody may call, without a token: a call that stays open keeps it."""

_LABELS = ("grpc_type", "grpc_service", "grpc_method")
_STARTED = Counter("grpc_server_started_total", "Calls started on the server.", _LABELS)
_HANDLED = Counter("grpc_server_handled_total", "Calls ended on the server, by code.", (*_LABELS, "grpc_code"))
_SECONDS = Histogram("grpc_server_handling_seconds", "Duration of a call until its status is sent.", _LABELS)
_RECEIVED = Counter("grpc_server_msg_received_total", "Messages received on streams and calls.", _LABELS)
_SENT = Counter("grpc_server_msg_sent_total", "Messages sent on streams and calls.", _LABELS)
_UNDECODABLE = Counter(
    "grpc_server_undecodable_total", "Requests that are not a message of their type.", ("grpc_service", "grpc_method")
)

_log = LateLogger()


class Requests:
    """Decodes the requests of all methods of a server.

    gRPC itself would answer UNKNOWN and log a traceback for each.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with nothing seen; `clock` is monotonic, in seconds."""
        self._clock = clock
        self._unlogged, self._quiet_until = 0, clock()

    def decoded(self, decode: Decode | None, data: Any, service: str, method: str) -> Any:  # noqa: ANN401
        """Return the message of a request's bytes; the bytes themselves if there is nothing to decode them with.

        Raises:
            InvalidArgument: They are not a message of the method, or too many.
        """
        if len(data) > (most := _MOST_BYTES.get(service, len(data))):
            raise InvalidArgument(
                f"a message of {service}/{method} has {len(data)} bytes, allowed: at most {most}",
                reason=Reason.TOO_LARGE,
            )
        try:
            return data if decode is None else decode(data)
        except DecodeError as error:
            _UNDECODABLE.labels(service, method).inc()
            self._tell(f"{service}/{method}", len(data))
            raise InvalidArgument(
                f"the request's {len(data)} bytes are not a message of {service}/{method}", reason=Reason.UNDECODABLE
            ) from error

    async def stream(
        self, decode: Decode | None, requests: AsyncIterator[Any], service: str, method: str
    ) -> AsyncIterator[Any]:
        """Yield the messages of a stream."""
        async for data in requests:
            yield self.decoded(decode, data, service, method)

    def _tell(self, method: str, size_bytes: int) -> None:
        self._unlogged += 1
        if (now := self._clock()) >= self._quiet_until:
            _log.warning("request cannot be decoded", method=method, bytes=size_bytes, since_last_line=self._unlogged)
            self._unlogged, self._quiet_until = 0, now + LOG_EVERY_S


class _Call:
    """Counts one call and turns its exception into a status."""

    def __init__(self, labels: tuple[str, str, str], context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._labels, self._context, self._started = labels, context, time.monotonic()
        self.received, self.sent = _RECEIVED.labels(*labels), _SENT.labels(*labels)
        self._code = "OK"
        _STARTED.labels(*labels).inc()

    async def fail(self, error: BaseException) -> None:
        """Answer the status of `error`; always raises.

        grpc keeps what ends a call until the next garbage collection; with it would stay all that the frames of its
        traceback hold, such as the request.
        """
        if isinstance(error, TidemillError):
            self._code = to_status(error).name
            error.__traceback__ = None
            await self._context.abort(to_status(error), shortened(str(error)), trailers(error))
        if isinstance(error, asyncio.CancelledError):
            self._code = "CANCELLED"
        elif isinstance(error, grpc.aio.AbortError):
            code: Any = self._context.code()
            self._code = getattr(code, "name", None) or grpc.StatusCode.UNKNOWN.name
        else:
            self._code = "INTERNAL"
            _log.error("call failed", method="/".join(self._labels[1:]), exc_info=error)
            details = shortened(f"internal error: {type(error).__name__}: {error}")
            error.__traceback__ = None
            await self._context.abort(grpc.StatusCode.INTERNAL, details)
        raise error

    def end(self) -> None:
        """Count the call as handled."""
        _HANDLED.labels(*self._labels, self._code).inc()
        _SECONDS.labels(*self._labels).observe(time.monotonic() - self._started)

    async def counted(self, requests: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """Count each request of a stream as it passes."""
        received: Any = aiter(requests)  # a generator that holds itself, and with it the newest request, until it ends
        async with contextlib.aclosing(received):
            async for request in received:
                self.received.inc()
                yield request


_MAKE_HANDLER = {
    "unary": grpc.unary_unary_rpc_method_handler,
    "client_stream": grpc.stream_unary_rpc_method_handler,
    "server_stream": grpc.unary_stream_rpc_method_handler,
    "bidi_stream": grpc.stream_stream_rpc_method_handler,
}


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler in a `_Call`; a streaming handler is an async generator or a coroutine.

    Requests are decoded here too, so that one that cannot be is answered and counted like any other fault of a caller.
    """

    def __init__(self) -> None:
        self._requests = Requests()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401 - grpc's RpcMethodHandler is generic over both message types
        """Return the handler of the called method, observed."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        _, service, method = handler_call_details.method.split("/", 2)
        kind = _kind(handler.request_streaming, handler.response_streaming)
        label = REFUSED if isinstance(handler.stream_unary, Refusal) else kind
        return _wrap(handler, kind, (label, service, method), self._requests)


def _kind(request_streaming: bool, response_streaming: bool) -> str:
    names = {(False, False): "unary", (True, False): "client_stream", (False, True): "server_stream"}
    return names.get((request_streaming, response_streaming), "bidi_stream")


def _wrap(handler: Any, kind: str, labels: tuple[str, str, str], requests: Requests) -> Any:  # noqa: ANN401
    method = handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
    decode, (_, *name) = handler.request_deserializer, labels

    def received(call: _Call, request: Any) -> Any:  # noqa: ANN401
        if handler.request_streaming:
            return requests.stream(decode, call.counted(request), *name)
        call.received.inc()
        return requests.decoded(decode, request, *name)

    async def answer(request: Any, context: Any) -> Any:  # noqa: ANN401
        call = _Call(labels, context)
        try:
            response = await method(received(call, request), context)
            call.sent.inc()
            return response
        except BaseException as error:
            request = None  # see `fail`
            await call.fail(error)
        finally:
            call.end()

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        call = _Call(labels, context)
        try:
            async for response in method(received(call, request), context):
                call.sent.inc()
                yield response
        except GeneratorExit:
            raise
        except BaseException as error:
            request = None  # see `fail`
            await call.fail(error)
        finally:
            call.end()

    # A streaming handler may also be a coroutine that writes to its context, as the health service's Watch is.
    behaviour = stream if inspect.isasyncgenfunction(method) else answer
    return _MAKE_HANDLER[kind](behaviour, None, handler.response_serializer)
