"""Requests from their bytes: what cannot be decoded is the caller's fault, and is answered as such."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import structlog
from google.protobuf.message import DecodeError
from prometheus_client import Counter

from tidemill.errors import InvalidArgument

Decode = Callable[[bytes], Any]
"""Returns the message of its bytes; raises DecodeError."""

LOG_EVERY_S = 10.0
"""Least time between two lines about requests that cannot be decoded, in seconds."""

_UNDECODABLE = Counter(
    "grpc_server_undecodable_total", "Requests that are no message of their type.", ("grpc_service", "grpc_method")
)

_log = structlog.get_logger()


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
            InvalidArgument: They are no message of the method.
        """
        try:
            return data if decode is None else decode(data)
        except DecodeError as error:
            _UNDECODABLE.labels(service, method).inc()
            self._tell(f"{service}/{method}", len(data))
            raise InvalidArgument(f"the request's {len(data)} bytes are no message of {service}/{method}") from error

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
