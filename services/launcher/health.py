"""Waits until a service says that it is ready."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from tidemill.rpc.channel import open_aio_channel
from tidemill.rpc.status import from_rpc_error

_RETRY_S = 0.1


async def until_serving(address: str) -> None:
    """Return when the service at `address` reports SERVING; cancel it to give up.

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


async def _announces_serving(channel: grpc.aio.Channel) -> bool:
    """Return True once the service serves, False if it cannot be reached or goes away before that."""
    watch = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    try:
        async for answer in watch(health_pb2.HealthCheckRequest(service="")):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return True
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise from_rpc_error(error) from error
    return False
