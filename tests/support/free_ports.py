"""Ports for servers that listen later than their address is chosen, or again after a restart."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from contextlib import ExitStack, suppress

PORTS = range(10240, 20000)
"""Below those that Linux gives to outgoing connections, any of which might take a port that is free for now."""

_given: deque[int] = deque(maxlen=500)
"""The last ones; a server that was given one of them may yet listen there."""


def ports_of_worker() -> range:
    """Return the part of `PORTS` that belongs to this worker of pytest-xdist; all of them without workers."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(PORTS) // workers
    return PORTS[number * size : (number + 1) * size]


def free_port(in_a_row: int = 1) -> int:
    """Return the first of so many ports of the loopback interface that are free and not given lately."""
    ports = ports_of_worker()
    chosen = random.SystemRandom()  # the seeded one would choose those of another run of the tests
    while True:
        first = chosen.choice(ports[: len(ports) - in_a_row + 1])
        wanted = range(first, first + in_a_row)
        lately = list(_given)[-(len(ports) // 2) :]  # never all of them, however many workers share the ports
        if not set(wanted) & set(lately) and _are_free(wanted):
            _given.extend(wanted)
            return first


def free_address() -> str:
    """Return a loopback address with a port that is free."""
    return f"127.0.0.1:{free_port()}"


def _are_free(ports: range) -> bool:
    with ExitStack() as probes, suppress(OSError):
        for port in ports:
            probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
        return True
    return False
