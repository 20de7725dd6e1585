"""What the live view shows: the run at one moment."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.launcher.supervisor import Phase, Supervisor
from services.launcher.usage import Usage, UsageMeter
from tidemill.config.run import RunSettings
from tidemill.errors import TidemillError
from tidemill.learner.client import LearnerClient
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.scores import Score, read_scores

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
    learner_answers: bool = True
    """Whether the learner said so now."""

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
        share = self.learner.wait_fraction
        return f"learner waits {share:.0%} of the time" if share >= _MANY_WAITS else "learner is busy"

    def fraction(self, limits: RunSettings) -> float:
        """Return how far the run is toward the nearest of its limits, 0 to 1; 0 if it has none."""
        learner = self.learner or LearnerStatus()
        pairs = (
            (learner.env_steps, limits.max_env_steps),
            (learner.learner_steps, limits.max_learner_steps),
            (self.newest.wall_s if self.newest else self.elapsed_s, limits.max_wall_s),
        )
        return min(max((value / limit for value, limit in pairs if limit), default=0.0), 1.0)


class Observer:
    """Takes snapshots of a running cluster. `take` blocks for at most a second; call it on a thread."""

    def __init__(
        self, learner_address: str, folder: Path, pid_of: Callable[[str], int | None], supervisor: Supervisor
    ) -> None:
        """Prepare; nothing is contacted yet."""
        self._client = LearnerClient(learner_address, deadline_s=_STATUS_DEADLINE_S)
        self._scores_file = folder / "scores.csv"
        self._pid_of, self._supervisor = pid_of, supervisor
        self._usage = UsageMeter()
        self._history: deque[tuple[float, int]] = deque()
        self._learner: LearnerStatus | None = None
        self._started_s = time.monotonic()

    def take(self) -> Snapshot:
        """Return the state of the run now."""
        now_s = time.monotonic()
        answer = self._learner_status()
        self._learner = answer or self._learner
        scores = self._scores()
        return Snapshot(
            elapsed_s=now_s - self._started_s,
            processes=tuple(self._row(name) for name in self._supervisor.processes),
            learner=self._learner,
            learner_answers=answer is not None,
            env_steps_per_s=self._rate(now_s, answer.env_steps) if answer else 0.0,
            newest=scores[-1] if scores else None,
            best=max(scores, key=lambda score: score.mean, default=None),
        )

    def close(self) -> None:
        """Close the connection to the learner."""
        self._client.close()

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

    def _rate(self, now_s: float, env_steps: int) -> float:
        history = self._history
        if history and env_steps < history[-1][1]:  # the learner went back to a checkpoint
            history.clear()
        history.append((now_s, env_steps))
        while history[0][0] < now_s - _RATE_WINDOW_S:
            history.popleft()
        elapsed_s = now_s - history[0][0]
        return (env_steps - history[0][1]) / elapsed_s if elapsed_s > 0 else 0.0
