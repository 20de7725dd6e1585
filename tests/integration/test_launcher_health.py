"""The launcher waits for a service whose process ends while it answers a health check, and starts again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server

from tests.support.waiting import WAIT_S
from tidemill.services.launcher.supervise.health import until_serving


class EndsTwelveTimes(HealthServicer):  # type: ignore[misc]
    """Breaks its first answers off, as a process that ends, in the words that gRPC has for it; then it serves."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._end = code, details
        self.asked = 0

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Abort, or say that it serves."""
        self.asked += 1
        if self.asked <= 12:
            await context.abort(*self._end)
        yield health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.parametrize(
    "code, details",
    [
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
        (grpc.StatusCode.UNKNOWN, "Stream removed"),
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; last error: UNAVAILABLE: unix:x: Socket closed",
        ),
    ],
)
async def test_launcher_waits_for_a_service_that_ends_while_it_answers(
    tmp_path: Path, code: grpc.StatusCode, details: str
) -> None:
    """An error that another start may mend ends no run, and at a Unix socket none is for want of TLS."""
    server, servicer = grpc.aio.server(), EndsTwelveTimes(code, details)
    add_HealthServicer_to_server(servicer, server)
    address = f"unix://{tmp_path}/socket"
    server.add_insecure_port(address)
    await server.start()
    try:
        await asyncio.wait_for(until_serving(address), WAIT_S)
    finally:
        await server.stop(None)
    assert servicer.asked == 13
