"""Waits at the start until the services that the learner needs answer."""

from __future__ import annotations

import threading
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidemill.errors import Unavailable
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.rpc.channel import open_channel
from tidemill.rpc.client_security import tls_failure

_POLL_S = 0.5
_ASK_S = 5.0  # its retries included
_ABSENT = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


def wait_for_service(setting: str, address: str, timeout_s: float, stop: threading.Event) -> bool:
    """Wait until a service answers; return False if `stop` was set first.

    Args:
        setting: Where its address is set, for the message, e.g. `cluster.replay`.
        address: The address.
        timeout_s: Longest wait, in seconds.
        stop: Ends the wait when set.

    Raises:
        Unavailable: Nothing answered in time; the message names setting and address.
    """
    deadline = time.monotonic() + timeout_s
    with open_channel(address) as channel:
        while not stop.is_set():
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                reason = f"nothing answers at {setting} ({address}) after {timeout_s:g} s"
                raise Unavailable(f"{reason}: {_why_not(channel) or 'is the service running?'}")
            if _answers(channel, min(_POLL_S, remaining_s)):
                return True
    return False


def wait_for_any_shard(setting: str, directory: ShardDirectory, timeout_s: float, stop: threading.Event) -> bool:
    """Wait until one of the replay shards answers; return False if `stop` was set first.

    Raises:
        Unavailable: None answered in time; the message names the setting and the addresses.
    """
    deadline = time.monotonic() + timeout_s
    while not stop.is_set():
        why = ""
        for address in directory.current.values():
            with open_channel(address) as channel:
                if _answers(channel, _POLL_S):
                    return True
                why = why or (_why_not(channel) if time.monotonic() > deadline else "")
        if time.monotonic() > deadline:
            addresses = ", ".join(directory.current.values()) or "a name that cannot be resolved"
            reason = f"no shard answers at {setting} ({addresses}) after {timeout_s:g} s"
            raise Unavailable(f"{reason}: {why or 'is one running?'}")
        stop.wait(_POLL_S)
    return False


def _why_not(channel: grpc.Channel) -> str:
    """Return why TLS does not let a channel connect; empty if that is not what fails."""
    try:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_ASK_S)
    except grpc.RpcError as error:
        return tls_failure(error.details() or "")
    return ""


def _answers(channel: grpc.Channel, timeout_s: float) -> bool:
    """Return whether any server answers, healthy or not."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)
    except grpc.RpcError as error:
        return error.code() not in _ABSENT
    return True
