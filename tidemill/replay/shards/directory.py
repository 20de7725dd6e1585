"""Directory of the replay shards, by name and address."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from tidemill.errors import InvalidArgument, Unavailable
from tidemill.logger import LateLogger
from tidemill.rpc.addresses import host_and_port, joined
from tidemill.rpc.fork import OwnerProcess, Reopened

_DNS = "dns:///"
_EVERY_S = 5.0
_AGAIN_S = 0.5  # between two questions for a name that is not known yet
_JOIN_S = 1.0

Resolve = Callable[[str], Sequence[str]]
"""The addresses `host:port` that a name `host:port` stands for; OSError if it cannot be found out now."""

_log = LateLogger()


def resolve_now(name: str) -> list[str]:
    """Return the addresses of `host:port` by the system's resolver, sorted. OSError: it does not know now.

    They are the IPv4 addresses if there are any: a server that also has an IPv6 address is one shard, not two.
    """
    host, port = host_and_port(name)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    ipv4 = [entry for entry in found if entry[0] == socket.AF_INET]
    return sorted({joined(str(entry[4][0]), port) for entry in ipv4 or found})


def servers_now(addresses: Sequence[str], timeout_s: float) -> tuple[str, ...]:
    """Return the address of each server behind a list of addresses, or behind a DNS name now.

    Raises:
        Unavailable: The resolver did not know the name within `timeout_s` seconds.
    """
    if not addresses[0].startswith(_DNS):
        return tuple(addresses)
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return tuple(resolve_now(addresses[0].removeprefix(_DNS)))
        except (OSError, ValueError) as error:
            if (left_s := deadline_s - time.monotonic()) <= 0:
                raise Unavailable(f"cannot resolve {addresses[0]}: {error}") from error
        time.sleep(min(left_s, _AGAIN_S))


class ShardDirectory(Reopened):
    """The shards behind a list of addresses, or behind one DNS name whose answer may change.

    A listed shard is named by its place in the list, which outlives a change of its address, and a server that stands
    alone by nothing; one that a DNS name stands for by its address. A thread asks for the name again and again; while
    it gets no answer, the last one holds. `current` and `known` raise
    FailedPrecondition in a forked process, which lacks the thread.

    Attributes:
        addresses: What it was made of.
        count: Over how many servers tables are divided, the same for everybody who creates them.
    """

    def __init__(
        self, addresses: Sequence[str], count: int = 0, *, every_s: float = _EVERY_S, resolve: Resolve | None = None
    ) -> None:
        """Take the addresses; asks for a DNS name in the background.

        Args:
            addresses: `host:port` or `unix:///path` each, or a single `dns:///name:port`.
            count: See `ShardDirectory.count`; 0 takes the number of addresses.
            every_s: Seconds between two questions for a name.
            resolve: Answers them; None for the system's resolver.

        Raises:
            InvalidArgument: there is no address, one comes twice, or a DNS name is not the only one.
        """
        check_addresses(addresses)
        self.addresses = tuple(addresses)
        self.count = count or len(addresses)
        self._resolve, self._every_s = resolve or resolve_now, every_s
        self._closed, self._known = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._owner: OwnerProcess | None = None
        self._current: Mapping[str, str] = {}
        if addresses[0].startswith(_DNS):
            name = addresses[0].removeprefix(_DNS)
            self._owner = OwnerProcess("ShardDirectory")
            self._thread = threading.Thread(target=self._follow, args=(name,), name=f"resolve-{name}", daemon=True)
            self._thread.start()
        elif self.is_sharded:
            self._current = {str(number): address for number, address in enumerate(addresses)}
        else:
            self._current = {"": addresses[0]}
        if self._current:
            self._known.set()

    @property
    def is_sharded(self) -> bool:
        """Whether it stands for several servers, now or later: more than one address, or a DNS name."""
        return len(self.addresses) > 1 or self.addresses[0].startswith(_DNS)

    @property
    def most_servers(self) -> int:
        """Most servers it stands for at a time: behind a DNS name one may come before its predecessor has gone."""
        return 2 * self.count if self.addresses[0].startswith(_DNS) else len(self.addresses)

    @property
    def current(self) -> Mapping[str, str]:
        """Address of each shard by name; empty before the first answer."""
        if self._owner is not None:
            self._owner.check()
        return self._current

    def known(self, timeout_s: float) -> Mapping[str, str]:
        """Wait for the first answer, at most `timeout_s` seconds; return `current` then, empty without one."""
        if not self.current:
            self._known.wait(timeout_s)
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
                self._known.set()
            if self._closed.wait(self._every_s):
                return


@contextmanager
def directory_of(servers: Sequence[str] | ShardDirectory) -> Iterator[ShardDirectory]:
    """Open the directory of servers; one that is open already stays open."""
    if isinstance(servers, ShardDirectory):
        yield servers
        return
    with closing(ShardDirectory(servers)) as directory:
        yield directory


def check_addresses(addresses: Sequence[str]) -> None:
    """Raise InvalidArgument unless `addresses` may be those of a replay service and its shards."""
    if not addresses or not all(addresses):
        raise InvalidArgument(f"addresses are {list(addresses)}, must be at least one and none empty")
    if len(set(addresses)) != len(addresses):
        raise InvalidArgument(f"addresses are {list(addresses)}, must name each shard once")
    if len(addresses) > 1 and any(address.startswith(_DNS) for address in addresses):
        raise InvalidArgument(f"addresses are {list(addresses)}: a dns:/// name stands for all shards and stands alone")
