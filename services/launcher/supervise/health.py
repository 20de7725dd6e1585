"""Health checks of a service: wait until it is ready, then watch that it keeps answering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from tidemill.errors import ConfigError, Unavailable
from tidemill.rpc.addresses import host_and_port
from tidemill.rpc.channel import open_aio_channel
from tidemill.rpc.client_security import tls_failure
from tidemill.rpc.status import from_rpc_error

_RETRY_S = 0.1
_MOST_TLS_FAILURES = 10  # in a row: a process that ends during a handshake looks like one
CHECK_EVERY_S = 5.0
"""A frozen service is noticed within ten seconds: five to the next check, five for its answer."""


@dataclass(frozen=True)
class Silence:
    """Time for which a service has left checks unanswered.

    Attributes:
        seconds: The time that checks waited for an answer, without what passed between them: a launcher that was itself
            stopped for an hour counts one check. 0 when it answers again.
        listens: Whether its socket takes connections, as that of a frozen process does. It does not where several
            learners are just being started again by the process that the launcher watches.
        unknown: Why no check can be made, such as a certificate that has expired; empty if one was. The process
            does not count as silent.
    """

    seconds: float
    listens: bool = True
    unknown: str = ""


async def until_serving(address: str) -> None:
    """Wait until the service at `address` reports SERVING; cancel it to give up.

    The health service announces changes, so nothing is asked twice once the process listens; before that, the
    attempt to connect is repeated.

    Raises:
        TidemillError: what listens has no health service, or TLS prevents a connection, so that waiting is of no use.
    """
    tls_failures = 0
    while True:
        # A new channel each time: gRPC would wait longer and longer between attempts to connect.
        async with open_aio_channel(address) as channel:
            try:
                if await _announces_serving(channel):
                    return
                tls_failures = 0
            except Unavailable:
                tls_failures += not address.startswith("unix:")  # without TLS: the same words mean something else
                if tls_failures == _MOST_TLS_FAILURES:
                    raise
        await asyncio.sleep(_RETRY_S)


async def silences(address: str, *, check_s: float) -> AsyncIterator[Silence]:
    """Yield each check that a service leaves unanswered or that cannot be made, and that it answers again.

    Never ends by itself. Why no check can be made is told once.

    Args:
        address: Of a service that has been serving.
        check_s: How long an answer may take, and the pause after each, in seconds.
    """
    silent_s, told = 0.0, ""
    while True:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + check_s
        answers, unknown = await _answers(address, check_s)
        if answers and silent_s:
            yield Silence(0.0)
        if unknown and unknown != told:
            yield Silence(0.0, unknown=unknown)
        silent_s, told = (0.0, unknown) if answers or unknown else (silent_s + check_s, told)
        await asyncio.sleep(due_s - loop.time())  # a refused connection counts as the same silence
        if silent_s:
            yield Silence(silent_s, await _listens(address))


async def _answers(address: str, timeout_s: float) -> tuple[bool, str]:
    """True if the service answers a health check, whatever the answer is; and why it cannot be asked."""
    try:
        # A new channel each time: none is left waiting to connect again when the service has come back.
        async with open_aio_channel(address) as channel:
            await HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=""), timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        absent = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return not absent, "" if address.startswith("unix:") else tls_failure(error.details() or "")
    except ConfigError as error:
        return False, str(error)
    return True, ""


async def _listens(address: str) -> bool:
    """True if the socket at an address accepts connections."""
    try:
        if address.startswith("unix:"):
            _, writer = await asyncio.open_unix_connection(address.removeprefix("unix:").removeprefix("//"))
        else:
            _, writer = await asyncio.open_connection(*host_and_port(address))
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:  # its queue of connections is full: the process does not accept them
        return True
    writer.close()
    return True


async def _announces_serving(channel: grpc.aio.Channel) -> bool:
    """Return True once the service serves, False if it cannot be reached or ends before that.

    Raises:
        Unavailable: TLS prevents a connection.
        TidemillError: what listens has no health service.
    """
    try:
        async for answer in HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="")):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return True
    except grpc.aio.AioRpcError as error:
        # Any other error is that of a process which ends while it answers.
        if error.code() is grpc.StatusCode.UNIMPLEMENTED or tls_failure(error.details() or ""):
            raise from_rpc_error(error) from error
    return False
