"""The one table between Tidemill's exceptions and gRPC status codes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc

from tidemill.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
    ResourceExhausted,
    TidemillError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from tidemill.rpc.client_security import tls_failure

MAX_DETAILS_BYTES = 2000
"""Longest message of a status: in the trailers it may take three times as much, and a client takes 8 KiB of them."""

REASON_KEY = "tidemill-reason"
"""Key in the trailing metadata of a failed call; its value is a name of the enum in tidemill/rpc/v1/reason.proto."""

_STATUS: tuple[tuple[type[TidemillError], grpc.StatusCode], ...] = (
    (InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (FailedPrecondition, grpc.StatusCode.FAILED_PRECONDITION),
    (ResourceExhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DataLoss, grpc.StatusCode.DATA_LOSS),
    (Unimplemented, grpc.StatusCode.UNIMPLEMENTED),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (PermissionDenied, grpc.StatusCode.PERMISSION_DENIED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)
_ERROR = {code: error for error, code in _STATUS} | {
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
}


def to_status(error: TidemillError) -> grpc.StatusCode:
    """Return the status code a server answers for an exception; INTERNAL for one that has none."""
    return next((code for kind, code in _STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


_TOO_LARGE = "larger than max"
"""What gRPC says of a message beyond the limit of the side that names itself: the same message will never pass."""


_NO_GRPC = "Received http2 header with status"
"""What gRPC says of an answer that another program gave in place of the service."""


_NO_METHOD = "Method not found!"
"""What gRPC answers for a service that has no such call."""


def from_rpc_error(error: grpc.RpcError) -> TidemillError:
    """Return the exception a client raises for a failed call, with the server's message."""
    code, details, reason = error.code(), error.details(), _reason(error)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and reason is None and details and _TOO_LARGE in details:
        return InvalidArgument(f"a message has more bytes than one side takes: {details}", reason=Reason.TOO_LARGE)
    if details and details.startswith(_NO_GRPC):
        why = (
            "another program, such as a web server or an ingress, answered at this address; compare it with the "
            "service's first log line"
        )
        return Unavailable(f"{why} ({details})")
    if details == _NO_METHOD:
        why = "the address is that of another service, or the service is of another release"
        return Unimplemented(f"the service at this address has no such call: {why} ({details})")
    kind = _ERROR.get(code, TidemillError)
    if kind is Unavailable and details and (why := tls_failure(details)):
        return Unavailable(f"{why} ({details})")
    return kind(details if kind in dict(_STATUS) and details else f"{code.name}: {details}", reason=reason)


def trailers(error: TidemillError) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata a server sends with an exception."""
    return () if error.reason is None else ((REASON_KEY, error.reason.value),)


def _reason(error: grpc.RpcError) -> Reason | None:
    """Return the reason that the server named; None if it named none, or one that is newer than this client."""
    metadata: Any = error.trailing_metadata() or ()
    named = dict(metadata).get(REASON_KEY)
    return next((reason for reason in Reason if reason == named), None)


def shortened(message: str) -> str:
    """Return a message that fits the trailers: its beginning and its end if it is too long.

    A client would get RESOURCE_EXHAUSTED instead of what the message says, and try again.
    """
    data = message.encode()
    if len(data) <= MAX_DETAILS_BYTES:
        return message
    head, tail = data[: MAX_DETAILS_BYTES * 3 // 4], data[-MAX_DETAILS_BYTES // 5 :]
    left_out = len(data) - len(head) - len(tail)
    return f"{head.decode(errors='ignore')} ... ({left_out} bytes left out) ... {tail.decode(errors='ignore')}"


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Re-raise a gRPC error of the block as the exception it stands for."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
