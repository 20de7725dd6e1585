"""Waits at the start of a process until one of the replay shards answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing

from tidemill.errors import Unavailable
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.rpc.channel import open_channel
from tidemill.rpc.readiness import answers, wait_for_service, why_not

_POLL_S = 0.5


def wait_for_replay(setting: str, addresses: Sequence[str], timeout_s: float, stop: threading.Event) -> bool:
    """Wait until the replay service, or one of its shards, answers; return False if `stop` was set first.

    Raises:
        Unavailable: Nothing answered in time; the message names the setting and the addresses.
    """
    with closing(ShardDirectory(addresses)) as directory:
        if not directory.is_sharded:
            return wait_for_service(setting, addresses[0], timeout_s, stop)
        return _wait_for_any(setting, directory, timeout_s, stop)


def _wait_for_any(setting: str, directory: ShardDirectory, timeout_s: float, stop: threading.Event) -> bool:
    deadline = time.monotonic() + timeout_s
    while not stop.is_set():
        why = ""
        for address in directory.current.values():
            with open_channel(address) as channel:
                if answers(channel, _POLL_S):
                    return True
                why = why or (why_not(channel) if time.monotonic() > deadline else "")
        if time.monotonic() > deadline:
            addresses = ", ".join(directory.current.values()) or "a name that cannot be resolved"
            reason = f"no shard answers at {setting} ({addresses}) after {timeout_s:g} s"
            raise Unavailable(f"{reason}: {why or 'is one running?'}")
        stop.wait(_POLL_S)
    return False
