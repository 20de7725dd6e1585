"""Waits at the start of a process until the services that it needs answer."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidemill.errors import Unavailable
from tidemill.rpc.channel import open_channel
from tidemill.rpc.client_security import tls_failure

_POLL_S = 0.5
_ASK_S = 5.0  # its retries included
_ABSENT = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


def wait_for_service(setting: str, address: str, timeout_s: float, stop: threading.Event) -> bool:
    """Wait until a service answers; as `wait_for_any`, with one address."""
    return wait_for_any(setting, (address,), timeout_s, stop)


def wait_for_any(setting: str, addresses: Sequence[str], timeout_s: float, stop: threading.Event) -> bool:
    """Wait until one of several services answers; return False if `stop` was set first.

    Args:
        setting: Where the addresses are set, for the message, e.g. `cluster.inference`.
        addresses: The addresses, at least one.
        timeout_s: Longest wait, in seconds.
        stop: Ends the wait when set.

    Raises:
        Unavailable: Nothing answered in time; the message names setting and addresses.
    """
    deadline = time.monotonic() + timeout_s
    with ExitStack() as stack:
        channels = [stack.enter_context(open_channel(address)) for address in addresses]
        for channel in itertools.cycle(channels):
            if stop.is_set():
                return False
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                reason = f"nothing answers at {setting} ({', '.join(addresses)}) after {timeout_s:g} s"
                why = next(filter(None, map(why_not, channels)), "is the service running?")
                raise Unavailable(f"{reason}: {why}")
            if answers(channel, min(_POLL_S, remaining_s)):
                return True
    raise AssertionError("a cycle has no end")


def why_not(channel: grpc.Channel) -> str:
    """Return why TLS prevents a channel from connecting; empty if something else fails."""
    try:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_ASK_S)
    except grpc.RpcError as error:
        return tls_failure(error.details() or "")
    return ""


def answers(channel: grpc.Channel, timeout_s: float) -> bool:
    """True if any server answers within `timeout_s`, healthy or not."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)
    except grpc.RpcError as error:
        return error.code() not in _ABSENT
    return True
