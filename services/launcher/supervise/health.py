"""Health checks of a service: wait until it is ready, then watch that it keeps answering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from tidemill.rpc.addresses import host_and_port
from tidemill.rpc.channel import open_aio_channel
from tidemill.rpc.status import from_rpc_error

_RETRY_S = 0.1
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
    """

    seconds: float
    listens: bool = True


async def until_serving(address: str) -> None:
    """Wait until the service at `address` reports SERVING; cancel it to give up.

    The health service announces changes, so nothing is asked twice once the process listens; before that, the
    attempt to connect is repeated.

    Raises:
        TidemillError: the service answers with an error, so that waiting is of no use.
    """
    while True:
        # A new channel each time: gRPC would wait longer and longer between attempts to connect.
        async with open_aio_channel(address) as channel:
            if await _announces_serving(channel):
                return
        await asyncio.sleep(_RETRY_S)


async def silences(address: str, *, check_s: float) -> AsyncIterator[Silence]:
    """Yield each check that a service leaves unanswered, and that it answers again; never ends by itself.

    Args:
        address: Of a service that has been serving.
        check_s: How long an answer may take, and the pause after each, in seconds.
    """
    silent_s = 0.0
    while True:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + check_s
        answers = await _answers(address, check_s)
        if answers and silent_s:
            yield Silence(0.0)
        silent_s = 0.0 if answers else silent_s + check_s
        await asyncio.sleep(due_s - loop.time())  # a refused connection counts as the same silence
        if not answers:
            yield Silence(silent_s, await _listens(address))


async def _answers(address: str, timeout_s: float) -> bool:
    """True if the service answers a health check, whatever the answer is."""
    # A new channel each time: none is left waiting to connect again when the service has come back.
    async with open_aio_channel(address) as channel:
        try:
            await HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=""), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return True


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
    """Return True once the service serves, False if it cannot be reached or ends before that."""
    try:
        async for answer in HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="")):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return True
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise from_rpc_error(error) from error
    return False
