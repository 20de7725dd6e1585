"""What the live view shows: the run at one moment."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.errors import TidemillError
from tidemill.learner.client import LearnerClient
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.scores import Score, read_scores
from tidemill.services.launcher.advice import Adviser, Sight
from tidemill.services.launcher.supervisor import Phase, Supervisor
from tidemill.services.launcher.tables import Tables
from tidemill.services.launcher.usage import Usage, UsageMeter

_RATE_WINDOW_S = 10.0
_STATUS_DEADLINE_S = 1.0
_MANY_WAITS = 0.2


@dataclass(frozen=True)
class ProcessRow:
    """One process in the view."""

    name: str
    phase: Phase
    pid: int | None
    restarts: int
    reason: str
    usage: Usage | None


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    elapsed_s: float
    """Seconds since this session of the run was started."""
    processes: tuple[ProcessRow, ...]
    learner: LearnerStatus | None = None
    """What it said last; None until it could be reached."""
    env_steps_per_s: float = 0.0
    newest: Score | None = None
    best: Score | None = None
    first: Score | None = None
    learner_answers: bool = True
    """Whether the learner said so now."""
    is_disk_full: bool = False
    """Whether nothing more can be stored."""
    warnings: tuple[str, ...] = ()
    """What is wrong and what to do, the gravest first."""

    @property
    def waiting(self) -> str:
        """Who waits for whom, in words."""
        if self.learner is None:
            return "waiting for the learner to start"
        if not self.learner_answers:
            return "the learner does not answer"
        if self.learner.state is LearnerState.WAITING:
            return f"learner waits for data ({self.learner.table_items:,} items in the table)"
        if self.learner.state is not LearnerState.TRAINING:
            return f"learner is {self.learner.state.name.lower()}"
        if self.is_disk_full:
            return "the disk is full"
        share = self.learner.wait_fraction
        return f"learner waits {share:.0%} of the time" if share >= _MANY_WAITS else "learner is busy"

    @property
    def keeps(self) -> str:
        """What Ctrl-C keeps now, in words."""
        if self.learner is not None and self.learner.checkpoint_error:
            steps = self.learner.checkpoint_steps
            return f"keeps what was learned up to step {steps:,} only" if steps else "keeps nothing of what was learned"
        if self.is_disk_full:
            return "cannot keep what was learned since the last checkpoint"
        return "keeps everything"

    def fraction(self, limits: RunSettings) -> float:
        """Return how far the run is toward the nearest of its limits, 0 to 1; 0 if it has none."""
        return min(max((value / limit for value, limit, _ in self._ways(limits) if limit), default=0.0), 1.0)

    def left_s(self, limits: RunSettings) -> float | None:
        """Return the seconds to the nearest of its limits if it goes on as now; None if none is being approached."""
        left = [(limit - value) / rate for value, limit, rate in self._ways(limits) if limit and rate > 0]
        return max(min(left), 0.0) if left else None

    def target_fraction(self, target: float | None) -> float | None:
        """Return how far the best score is from the first one toward the target, 0 to 1; None before both are known."""
        if target is None or self.first is None or self.best is None:
            return None
        if self.best.mean >= target or self.first.mean >= target:
            return 1.0
        return (self.best.mean - self.first.mean) / (target - self.first.mean)

    def _ways(self, limits: RunSettings) -> tuple[tuple[float, float, float], ...]:
        """Return for each limit how far the run is, the limit (0 for none), and how much comes in a second."""
        learner = self.learner or LearnerStatus()
        updates_per_s = learner.steps_per_s if self.learner_answers else 0.0
        trained_s = max(self.elapsed_s, self.newest.wall_s if self.newest else 0.0)
        return (
            (learner.env_steps, limits.max_env_steps, self.env_steps_per_s),
            (learner.learner_steps, limits.max_learner_steps, updates_per_s),
            (trained_s, limits.max_wall_s, 1.0),
        )


class Rate:
    """How fast a count grows, over the newest ten seconds, or since the look before where that was longer ago."""

    def __init__(self) -> None:
        """Nothing has been seen."""
        self._history: deque[tuple[float, int]] = deque()

    def at(self, now_s: float, count: int) -> float:
        """Return the count's growth for each second; 0 at the first look."""
        history = self._history
        if history and count < history[-1][1]:  # the learner went back to a checkpoint
            history.clear()
        history.append((now_s, count))
        while len(history) > 2 and history[1][0] <= now_s - _RATE_WINDOW_S:
            history.popleft()
        elapsed_s = now_s - history[0][0]
        return (count - history[0][1]) / elapsed_s if elapsed_s > 0 else 0.0


class Observer:
    """Takes snapshots of a running cluster.

    `take` blocks for at most a second for the learner and each replay shard; call it on a thread.
    """

    def __init__(
        self, config: RunConfig, folder: Path, pid_of: Callable[[str], int | None], supervisor: Supervisor
    ) -> None:
        """Prepare; nothing is contacted yet."""
        self._client = LearnerClient(config.cluster.learner, deadline_s=_STATUS_DEADLINE_S)
        self._tables = Tables(config.cluster.replay)
        self._adviser = Adviser(folder, config.learner.publish_every)
        self._folder, self._scores_file = folder, folder / "scores.csv"
        self._pid_of, self._supervisor = pid_of, supervisor
        self._usage = UsageMeter()
        self._env_rate = Rate()
        self._learner: LearnerStatus | None = None
        self._started_s = time.monotonic()

    def take(self) -> Snapshot:
        """Return the state of the run now."""
        now_s = time.monotonic()
        answer = self._learner_status()
        self._learner = answer or self._learner
        scores = self._scores()
        sight = Sight(answer, self._tables.describe(), shutil.disk_usage(self._folder).free)
        return Snapshot(
            elapsed_s=now_s - self._started_s,
            processes=tuple(self._row(name) for name in self._supervisor.processes),
            learner=self._learner,
            learner_answers=answer is not None,
            env_steps_per_s=self._env_rate.at(now_s, answer.env_steps) if answer else 0.0,
            newest=scores[-1] if scores else None,
            best=max(scores, key=lambda score: score.mean, default=None),
            first=scores[0] if scores else None,
            is_disk_full=sight.is_disk_full,
            warnings=self._adviser.warnings(sight, now_s),
        )

    @property
    def learner(self) -> LearnerStatus | None:
        """What the learner said last; None if it never did."""
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
        usage = self._usage.look(pid)
        return ProcessRow(name, process.phase, pid, process.restarts_total, process.reason, usage)
