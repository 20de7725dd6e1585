"""Waits at the start for the services the learner needs."""

from __future__ import annotations

import threading
import time

import grpc

from tidemill.errors import Unavailable
from tidemill.rpc.channel import open_channel

_POLL_S = 0.5


def wait_for_peer(setting: str, address: str, timeout_s: float, stop: threading.Event) -> bool:
    """Wait until a service accepts connections; return False if `stop` was set first.

    Args:
        setting: Where its address is set, for the message, e.g. `cluster.replay`.
        address: The address.
        timeout_s: Longest wait, in seconds.
        stop: Ends the wait when set.

    Raises:
        Unavailable: Nothing accepted connections in time; the message names setting and address.
    """
    deadline = time.monotonic() + timeout_s
    with open_channel(address) as channel:
        ready = grpc.channel_ready_future(channel)
        while not stop.is_set():
            try:
                ready.result(timeout=min(_POLL_S, max(deadline - time.monotonic(), 0.0)))
                return True
            except grpc.FutureTimeoutError:
                if time.monotonic() >= deadline:
                    ready.cancel()
                    reason = f"nothing answers at {setting} ({address}) after {timeout_s:g} s"
                    raise Unavailable(f"{reason}: is the service running?") from None
        ready.cancel()
        return False
