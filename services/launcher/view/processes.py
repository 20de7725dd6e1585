"""State of a run's processes, from the launcher that started them or from their health services."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidemill import linux
from tidemill.config.run import ClusterSettings
from tidemill.rpc.channel import open_channel
from tidemill.rpc.client_security import tls_failure
from tidemill.services.launcher.run.paths import why_out_of_reach
from tidemill.services.launcher.supervise.supervisor import Phase, Supervisor
from tidemill.services.launcher.view.status import ProcessRow, ProcessUsage

_ANSWER_S = 1.0


class SupervisedProcesses:
    """The processes that this launcher started."""

    def __init__(self, supervisor: Supervisor, pid_of: Callable[[str], int | None]) -> None:
        """Read the supervisor's decisions, and the process ids that came of them."""
        self._supervisor, self._pid_of, self._usage = supervisor, pid_of, UsageMeter()

    def __call__(self) -> tuple[ProcessRow, ...]:
        """Return a row for each."""
        return tuple(self._row(name) for name in self._supervisor.processes)

    def _row(self, name: str) -> ProcessRow:
        process = self._supervisor.processes[name]
        pid = self._pid_of(name)
        return ProcessRow(name, process.phase, pid, process.restarts_total, process.reason, self._usage.read(pid))


class AskedServices:
    """The services of a cluster that something else started; actors and evaluators have no address to ask at."""

    def __init__(self, cluster: ClusterSettings) -> None:
        """Prepare; nothing is contacted yet. A `dns:` name is skipped: it does not distinguish the shards behind it."""
        shards = [address for address in cluster.replay if not address.startswith("dns:")]
        self._addresses = _numbered("replay", shards) | {"paramserver": cluster.params, "learner": cluster.learner}
        self._addresses |= _numbered("inference", cluster.inference)
        self._channels = {name: open_channel(address) for name, address in self._addresses.items()}

    def __call__(self) -> tuple[ProcessRow, ...]:
        """Return a row for each, after at most a second for each."""
        return tuple(map(self._row, self._addresses))

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            channel.close()

    def _row(self, name: str) -> ProcessRow:
        address = self._addresses[name]
        phase, reason = Phase.SILENT, why_out_of_reach(address) or f"no answer from {address}"
        try:
            health = health_pb2_grpc.HealthStub(self._channels[name])
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=_ANSWER_S)
            serves = answer.status == health_pb2.HealthCheckResponse.SERVING
            phase, reason = (Phase.SERVING, "") if serves else (Phase.STARTING, "is not ready")
        except grpc.RpcError as error:
            reason = tls_failure(error.details() or "") or reason
        return ProcessRow(name, phase, None, 0, reason, None)


def _numbered(kind: str, addresses: Sequence[str]) -> dict[str, str]:
    names = [kind] if len(addresses) == 1 else [f"{kind}-{number}" for number in range(len(addresses))]
    return dict(zip(names, addresses, strict=True))


class UsageMeter:
    """Remembers the CPU time of each process to compute its share since the last reading."""

    def __init__(self, proc: Path = linux.PROC) -> None:
        """Read below `proc`."""
        self._proc = proc
        self._last: dict[int, tuple[float, float]] = {}

    def read(self, pid: int | None) -> ProcessUsage | None:
        """Return the usage of a process; None if it has ended, or the system has no /proc."""
        if pid is None:
            return None
        try:
            # The name in parentheses may hold blanks; after it come the fields of proc(5) from the third.
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        now_s = time.monotonic()
        last_s, last_cpu_s = self._last.get(pid, (now_s, cpu_s))
        self._last[pid] = (now_s, cpu_s)
        share = (cpu_s - last_cpu_s) / (now_s - last_s) if now_s > last_s else 0.0
        return ProcessUsage(share, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
