"""`python -m tidemill.rpc.health_probe ADDRESS`: whether a service serves, for a container's healthcheck."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2

from tidemill.rpc.channel import open_channel
from tidemill.rpc.status import from_rpc_error

_CHECK = "/grpc.health.v1.Health/Check"


def main(argv: Sequence[str] | None = None) -> int:
    """Ask once; return 0 if the service serves, 1 if it does not or cannot be reached, with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tidemill.rpc.health_probe", description="Ask a service's health.")
    parser.add_argument("address", help="host:port, dns:///name:port or unix:///path")
    parser.add_argument("--timeout-s", type=float, default=4.0, help="how long to wait for the answer, in seconds")
    arguments = parser.parse_args(argv)
    reason = why_not_serving(arguments.address, arguments.timeout_s)
    if reason:
        sys.stderr.write(f"{arguments.address}: {reason}\n")
    return 1 if reason else 0


def why_not_serving(address: str, timeout_s: float) -> str:
    """Return why the service at an address does not serve, in words; empty if it does."""
    with open_channel(address) as channel:
        check = channel.unary_unary(
            _CHECK,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            # A service that is just starting is worth the wait: the probe has a bound of its own.
            answer = check(health_pb2.HealthCheckRequest(service=""), timeout=timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            return str(from_rpc_error(error)) or "no answer"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


if __name__ == "__main__":
    sys.exit(main())
