"""Polls the status of a running cluster: its learner, replay services, processes and files."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemill.config.sections import RunConfig
from tidemill.errors import TidemillError
from tidemill.learner.client import LearnerClient
from tidemill.learner.status import LearnerStatus
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableDescription
from tidemill.scores import Score, read_scores
from tidemill.services.launcher.supervise.supervisor import Supervisor
from tidemill.services.launcher.view.rate_meter import RateMeter
from tidemill.services.launcher.view.status import ClusterStatus, ProcessRow, ProcessUsage
from tidemill.services.launcher.view.warnings import ClusterSample, WarningTracker

_DEADLINE_S = 1.0


class ReplayTables:
    """The replay services of a run, one shard after the other."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Prepare; nothing is contacted yet. A `dns:` name is skipped: it does not distinguish the shards behind it."""
        own = (address for address in addresses if not address.startswith("dns:"))
        self._clients = [ReplayClient(address, deadline_s=_DEADLINE_S) for address in own]

    def describe(self) -> tuple[TableDescription, ...]:
        """Return the tables of the services that answer, within a second for each."""
        found: list[TableDescription] = []
        for client in self._clients:
            with contextlib.suppress(TidemillError):
                found += client.list_tables()
        return tuple(found)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()


class UsageMeter:
    """Remembers the CPU time of each process to compute its share since the last reading."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
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


class StatusPoller:
    """Polls the status of a running cluster.

    `poll` blocks for at most a second for the learner and each replay shard; call it on a thread.
    """

    def __init__(
        self, config: RunConfig, folder: Path, pid_of: Callable[[str], int | None], supervisor: Supervisor
    ) -> None:
        """Prepare; nothing is contacted yet."""
        self._client = LearnerClient(config.cluster.learner, deadline_s=_DEADLINE_S)
        self._tables = ReplayTables(config.cluster.replay)
        self._tracker = WarningTracker(folder, config.learner.publish_every)
        self._folder, self._scores_file = folder, folder / "scores.csv"
        self._pid_of, self._supervisor = pid_of, supervisor
        self._usage = UsageMeter()
        self._env_rate = RateMeter()
        self._learner: LearnerStatus | None = None
        self._started_s = time.monotonic()

    def poll(self) -> ClusterStatus:
        """Return the state of the run now."""
        now_s = time.monotonic()
        answer = self._learner_status()
        self._learner = answer or self._learner
        scores = self._scores()
        sample = ClusterSample(answer, self._tables.describe(), shutil.disk_usage(self._folder).free)
        return ClusterStatus(
            elapsed_s=now_s - self._started_s,
            processes=tuple(self._row(name) for name in self._supervisor.processes),
            learner=self._learner,
            learner_answers=answer is not None,
            env_steps_per_s=self._env_rate.update(now_s, answer.env_steps) if answer else 0.0,
            newest=scores[-1] if scores else None,
            best=max(scores, key=lambda score: score.mean, default=None),
            first=scores[0] if scores else None,
            scores=tuple(scores),
            is_disk_full=sample.is_disk_full,
            tables=tuple(sample.tables),
            warnings=self._tracker.warnings(sample, now_s),
        )

    @property
    def learner(self) -> LearnerStatus | None:
        """Last status of the learner; None if it never answered."""
        return self._learner

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._tables.close()

    def _learner_status(self) -> LearnerStatus | None:
        with contextlib.suppress(TidemillError):
            return self._client.get_status()
        return None

    def _scores(self) -> list[Score]:
        with contextlib.suppress(TidemillError):
            return read_scores(self._scores_file)
        return []

    def _row(self, name: str) -> ProcessRow:
        process = self._supervisor.processes[name]
        pid = self._pid_of(name)
        usage = self._usage.read(pid)
        return ProcessRow(name, process.phase, pid, process.restarts_total, process.reason, usage)
