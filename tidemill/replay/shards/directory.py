"""Directory of the replay shards, by name and address."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence

from tidemill.errors import InvalidArgument
from tidemill.logger import LateLogger
from tidemill.rpc.addresses import host_and_port, joined

_DNS = "dns:///"
_EVERY_S = 5.0
_JOIN_S = 1.0

Resolve = Callable[[str], Sequence[str]]
"""The addresses `host:port` that a name `host:port` stands for; OSError if it cannot be found out now."""

_log = LateLogger()


def is_sharded(addresses: Sequence[str]) -> bool:
    """True if addresses may stand for several servers: more than one address, or a DNS name."""
    return len(addresses) > 1 or addresses[0].startswith(_DNS)


def resolve(name: str) -> list[str]:
    """Return the addresses of `host:port` by the system's resolver, sorted. OSError: it does not know now."""
    host, port = host_and_port(name)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({joined(str(entry[4][0]), port) for entry in found})


class ShardDirectory:
    """The shards behind a list of addresses, or behind one DNS name whose answer may change.

    A listed shard is named by its place in the list, which outlives a change of its address; one that a name
    stands for by its address. A thread asks for the name again and again; while it gets no answer, the last one holds.
    """

    def __init__(self, addresses: Sequence[str], *, every_s: float = _EVERY_S, resolve: Resolve = resolve) -> None:
        """Take the addresses; asks for a DNS name in the background.

        Args:
            addresses: `host:port` or `unix:///path` each, or a single `dns:///name:port`.
            every_s: Seconds between two questions for a name.
            resolve: Answers them.

        Raises:
            InvalidArgument: there is no address, one comes twice, or a DNS name is not the only one.
        """
        check_addresses(addresses)
        self._resolve, self._every_s = resolve, every_s
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._current: Mapping[str, str] = {}
        if addresses[0].startswith(_DNS):
            name = addresses[0].removeprefix(_DNS)
            self._thread = threading.Thread(target=self._follow, args=(name,), name=f"resolve-{name}", daemon=True)
            self._thread.start()
        else:
            self._current = {str(number): address for number, address in enumerate(addresses)}

    @property
    def current(self) -> Mapping[str, str]:
        """Address of each shard by name; empty before the first answer."""
        return self._current

    def close(self) -> None:
        """Ask no more. May be called twice."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)  # a question underway ends when the resolver does

    def _follow(self, name: str) -> None:
        failing = False
        while True:
            try:
                found = {address: address for address in self._resolve(name)}
                failing = False
            except (OSError, ValueError) as error:
                found = {}
                if not failing:
                    _log.warning(
                        "cannot resolve the replay shards", name=name, why=str(error), keeps=len(self._current)
                    )
                failing = True
            if found and found != self._current:
                _log.info("replay shards", name=name, addresses=sorted(found))
                self._current = found
            if self._closed.wait(self._every_s):
                return


def check_addresses(addresses: Sequence[str]) -> None:
    """Raise InvalidArgument unless `addresses` may be those of a replay service and its shards."""
    if not addresses or not all(addresses):
        raise InvalidArgument(f"addresses are {list(addresses)}, must be at least one and none empty")
    if len(set(addresses)) != len(addresses):
        raise InvalidArgument(f"addresses are {list(addresses)}, must name each shard once")
    if len(addresses) > 1 and any(address.startswith(_DNS) for address in addresses):
        raise InvalidArgument(f"addresses are {list(addresses)}: a dns:/// name stands for all shards and stands alone")
