"""State and last log lines of processes that an engine started, from their metrics endpoints."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

from tidemill.rpc.addresses import host_and_port, joined
from tidemill.services.launcher.supervise.supervisor import Phase
from tidemill.services.launcher.view.status import ProcessRow, ProcessUsage, of_every_kind

_ANSWER_S = 2.0
_MOST = 128
"""Addresses that are asked; more of them are counted in one row."""
_ASKED_AT_ONCE = 16
_ANSWER_BYTES = 2**20
_SERIES = re.compile(r"^(process_cpu_seconds_total|process_resident_memory_bytes)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_START = re.compile(r"^tidemill_start_time_seconds\{([^}]*)\} (\S+)$", re.MULTILINE)
_HOST = re.compile(r'host="([^"]*)"')


@dataclass
class _Process:
    """State of the process at one address."""

    name: str
    endpoint: str
    """Whose name was resolved: engines give an address to another service when both are started again."""
    phase: Phase = Phase.STARTING
    reason: str = ""
    restarts: int = 0
    cpu_s: float = 0.0
    asked_s: float = 0.0
    life: list[tuple[str, str]] = field(default_factory=list)
    """The host and the start time that it says."""
    usage: ProcessUsage | None = None
    lines: tuple[str, ...] = ()


class AskedEndpoints:
    """The processes behind `HOST:PORT` of metrics; a host name stands for as many of them as it has addresses.

    Of a name with IPv4 and IPv6 addresses one kind counts, for a process may have one of each: the first that answers.

    One whose host says another start time at its port than before was restarted, also under another address. Its own
    name does not tell it: services may share one, and an actor has none until it has found its place.
    """

    def __init__(
        self, endpoints: Sequence[str], event: Callable[[str], None] = lambda _: None, every_s: float = 5.0
    ) -> None:
        """Prepare; nothing is contacted yet.

        Args:
            endpoints: `HOST:PORT` of each service.
            event: Told what changes, in words.
            every_s: How often they are asked at most.
        """
        self._endpoints, self._event, self._every_s = endpoints, event, every_s
        self._processes: dict[str, _Process] = {}
        self._lives: dict[tuple[str, int], list[str]] = {}  # start times by host and port
        self._asked: set[str] = set()
        self._asked_s = -every_s
        self._pool = ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="endpoints")

    def __call__(self) -> tuple[ProcessRow, ...]:
        """Return a row for each, and one for all that are too many; they are asked at most every `every_s`."""
        if time.monotonic() - self._asked_s >= self._every_s:
            self._asked_s = time.monotonic()
            self._find()
            before = {address: process.phase for address, process in self._processes.items()}
            self._asked = set(of_every_kind([each.name for each in self._processes.values()], _MOST))
            asked = [address for address, each in self._processes.items() if each.name in self._asked]
            list(self._pool.map(self._ask, asked))
            self._tell(before)
        rows = [
            ProcessRow(each.name, each.phase, None, each.restarts, each.reason, each.usage)
            for each in self._processes.values()
            if each.name in self._asked
        ]
        if more := len(self._processes) - len(rows):
            reason = f"not asked: {_MOST} processes are asked at most"
            rows.append(ProcessRow(f"{more} more", Phase.PENDING, None, 0, reason, None, is_process=False))
        return tuple(rows)

    def lines(self, name: str) -> list[str]:
        """Return the last log lines of the process of a row."""
        return next((list(each.lines) for each in self._processes.values() if each.name == name), [])

    def close(self) -> None:
        """Ask no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _find(self) -> None:
        """Bring the processes in line with what names resolve to."""
        found: dict[str, _Process] = {}
        hosts = Counter(host_and_port(endpoint)[0] for endpoint in self._endpoints)
        for endpoint, addresses in self._of_one_kind().items():
            host, _ = host_and_port(endpoint)
            name = host if hosts[host] == 1 else endpoint
            processes = {address: self._processes.get(address) for address in addresses}
            known = {address: each for address, each in processes.items() if each and each.endpoint == endpoint}
            taken = {each.name for each in known.values()}
            free = (name for name in _names(name, len(addresses)) if name not in taken)
            for address in addresses:
                found[address] = known.get(address) or _Process(next(free), endpoint)
        self._processes = dict(sorted(found.items(), key=lambda item: _in_order(item[1].name)))

    def _of_one_kind(self) -> dict[str, list[str]]:
        """Return each endpoint's addresses of the first kind of which one answered when last asked, or answers now."""

        def is_new(kind: list[str]) -> bool:
            return not self._processes.keys() & {*kind}

        kinds = {each: sorted(_addresses(*host_and_port(each)), key=is_new) for each in self._endpoints}
        answering = {address for address, each in self._processes.items() if each.phase is not Phase.SILENT}
        open_kinds = (each for each in kinds.values() if len(each) > 1 and not answering & {*each[0]})
        unclear = [address for each in open_kinds for address in chain(*each)]
        accepts = self._pool.map(_accepts, unclear)  # those of all endpoints: each may take until it is given up
        answering |= {address for address, is_open in zip(unclear, accepts, strict=True) if is_open}
        return {name: next((kind for kind in each if answering & {*kind}), each[0]) for name, each in kinds.items()}

    def _ask(self, address: str) -> None:
        process = self._processes[address]
        try:
            process.reason = _get(address, "/healthz", accepted=(200, 503)).strip()
            metrics = _get(address, "/metrics")
            process.lines = tuple(_get(address, "/logs").splitlines())
        except (OSError, http.client.HTTPException, ValueError):
            process.phase, process.reason, process.usage = Phase.SILENT, f"no answer from {address}", None
            return
        is_well = process.reason == "SERVING"
        process.phase, process.reason = (Phase.SERVING, "") if is_well else (Phase.STARTING, process.reason)
        self._note(process, metrics, host_and_port(address)[1])

    def _note(self, process: _Process, metrics: str, port: int) -> None:
        """Read the state of a process from its metrics."""
        starts = _START.findall(metrics)
        life = [(found[1] if (found := _HOST.search(labels)) else "", start) for labels, start in starts]
        if life != process.life:  # another process, whose CPU time is counted separately
            process.life, process.asked_s = life, 0.0
        for host, start in life:
            lives = self._lives.setdefault((host, port), [])
            if start not in lives:
                lives.append(start)
                if len(lives) > 1:
                    self._event(f"{process.name} was restarted")
            process.restarts = len(lives) - 1
        numbers = {name: float(value) for name, value in _SERIES.findall(metrics)}
        cpu_s, now_s = numbers.get("process_cpu_seconds_total", 0.0), time.monotonic()
        share = (cpu_s - process.cpu_s) / (now_s - process.asked_s) if process.asked_s else 0.0
        process.cpu_s, process.asked_s = cpu_s, now_s
        process.usage = ProcessUsage(share, int(numbers.get("process_resident_memory_bytes", 0.0)))

    def _tell(self, before: dict[str, Phase]) -> None:
        for address, process in self._processes.items():
            was = before[address]
            if process.phase is Phase.SILENT and was is Phase.SERVING:
                self._event(f"{process.name} does not answer")
            elif process.phase is Phase.SERVING and was is Phase.SILENT:
                self._event(f"{process.name} answers again")


def _addresses(host: str, port: int) -> list[list[str]]:
    """Return the addresses of a name by kind; the name itself where it has none, so that it is seen to be silent."""
    kinds: dict[int, set[str]] = {}
    with contextlib.suppress(OSError):
        for kind, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            kinds.setdefault(kind, set()).add(joined(str(address[0]), port))
    return [sorted(addresses) for addresses in kinds.values()] or [[joined(host, port)]]


def _accepts(address: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(host_and_port(address), timeout=_ANSWER_S):
        return True
    return False


def _names(host: str, count: int) -> list[str]:
    return [host] if count == 1 else [f"{host}-{number}" for number in range(count)]


def _in_order(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition("-")
    return (kind, int(number)) if number.isdigit() else (name, 0)


def _get(address: str, path: str, accepted: tuple[int, ...] = (200,)) -> str:
    connection = http.client.HTTPConnection(*host_and_port(address), timeout=_ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read(_ANSWER_BYTES).decode("utf-8", "replace")
    finally:
        connection.close()
    if answer.status not in accepted:
        raise OSError(f"{path}: {answer.status}")
    return text
