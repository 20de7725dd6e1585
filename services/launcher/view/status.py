"""The status of a run at one moment, as the live view shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemill.config.run import RunSettings
from tidemill.learner.status import POLICY_LAG, LearnerState, LearnerStatus
from tidemill.replay.table_config import TableDescription
from tidemill.scores import Score
from tidemill.services.launcher.supervise.supervisor import Phase

_MANY_WAITS = 0.2


@dataclass(frozen=True)
class ProcessUsage:
    """CPU and memory of one process."""

    cpu_fraction: float
    """Share of one core since the last reading, 0 to the number of cores."""
    memory_bytes: int
    """Resident memory."""


@dataclass(frozen=True)
class ProcessRow:
    """One process in the view."""

    name: str
    phase: Phase
    pid: int | None
    restarts: int
    reason: str
    usage: ProcessUsage | None
    is_process: bool = True
    """False for a row that counts processes which are not asked; it has no log."""


def of_every_kind(names: Sequence[str], most: int) -> list[str]:
    """Return at most so many names in their order: `learner` and `replay-0` before `actor-1`, for many are actors."""
    seen: Counter[str] = Counter()
    ranks: dict[str, int] = {}
    for name in names:
        kind = name.rstrip("-0123456789")
        ranks[name] = seen[kind]
        seen[kind] += 1
    chosen = set(sorted(names, key=ranks.__getitem__)[:most])
    return [name for name in names if name in chosen]


@dataclass(frozen=True)
class ClusterStatus:
    """A run at one moment."""

    elapsed_s: float
    """Seconds since this session of the run was started."""
    processes: tuple[ProcessRow, ...]
    learner: LearnerStatus | None = None
    """Its last status; None until it could be reached."""
    env_steps_per_s: float = 0.0
    newest: Score | None = None
    best: Score | None = None
    first: Score | None = None
    scores: tuple[Score, ...] = ()
    """Every evaluation so far, the oldest first."""
    confirmations: tuple[Score, ...] = ()
    """Every confirmation on fresh episodes so far, the oldest first."""
    learner_answers: bool = True
    """Whether the learner answered just now."""
    tables: tuple[tuple[TableDescription, ...], ...] = ()
    """The tables of each replay service; empty for one that does not answer."""
    is_disk_full: bool = False
    """Whether nothing more can be stored."""
    training_return: float | None = None
    """Mean return of the actors' newest training episodes, at most 100 of each; None before the first report."""
    evaluating: str = ""
    """The evaluation that is under way, as a phrase; empty if there is none."""
    env_failures: Mapping[str, int] = field(default_factory=dict)
    """Failures of the actors' environments so far, by kind; only kinds that have occurred."""
    warnings: tuple[str, ...] = ()
    """Problems and what to do about them, the most serious first."""
    earlier_s: float = 0.0
    """Seconds of training in earlier sessions of the run."""
    min_size: int = 0
    """Items with which the learner may begin, if `learner.updates_per_env_step` limits its updates; 0 if not."""

    @property
    def counting(self) -> LearnerStatus | None:
        """The learner's status just now; None without an answer, or while it starts and has not restored its counts."""
        is_known = self.learner_answers and self.learner and self.learner.state is not LearnerState.STARTING
        return self.learner if is_known else None

    @property
    def waiting(self) -> str:
        """Which services wait for which, as a phrase."""
        if self._learner_ends:
            return self.evaluating or "the learner has ended"
        if self.learner is None:
            return "waiting for the learner to start"
        if not self.learner_answers:
            return "the learner does not answer"
        if self.is_disk_full and self.learner.state in (LearnerState.TRAINING, LearnerState.WAITING):
            return "the disk is full"
        if self.learner.state is not LearnerState.TRAINING:
            return _without_training(self.learner, self.min_size)
        share = self.learner.wait_fraction
        return f"learner waits {share:.0%} of the time" if share >= _MANY_WAITS else "learner is busy"

    @property
    def has_ended(self) -> bool:
        """Whether the run is over, and its learner idles."""
        return self.learner is not None and self.learner.state is LearnerState.ENDED

    @property
    def _learner_ends(self) -> bool:
        """Whether the launcher has seen the learner end, or has asked it to."""
        return any(row.name == "learner" and row.phase in (Phase.ENDED, Phase.STOPPING) for row in self.processes)

    @property
    def replay_ratio(self) -> float | None:
        """Updates per agent decision since the run began; None before the first decision."""
        learner = self.learner
        return learner.learner_steps / learner.env_steps if learner and learner.env_steps else None

    @property
    def policy_lag(self) -> float | None:
        """How many versions behind the newest the learner's data was collected, on average; None before the first."""
        return self.learner.metrics.get(POLICY_LAG) if self.learner else None

    @property
    def keeps(self) -> str:
        """Description of the data that Ctrl-C would keep now."""
        if self.learner is not None and self.learner.checkpoint_error:
            if not self.is_disk_full:  # the cause may have passed
                return "tries to keep everything; the last checkpoint failed"
            steps = self.learner.checkpoint_steps
            return f"keeps what was learned up to step {steps:,} only" if steps else "keeps nothing of what was learned"
        if self.is_disk_full:
            return "cannot keep what was learned since the last checkpoint"
        return "keeps everything"

    def fraction(self, limits: RunSettings) -> float:
        """Return the progress toward the nearest limit of the run, 0 to 1; 0 if it has none."""
        return min(max((value / limit for value, limit, _ in self._ways(limits) if limit), default=0.0), 1.0)

    def left_s(self, limits: RunSettings) -> float | None:
        """Return the seconds to the nearest of its limits at the present rates; None if none is being approached."""
        if self.has_ended or self._learner_ends:
            return None
        left = [(limit - value) / rate for value, limit, rate in self._ways(limits) if limit and rate > 0]
        return max(min(left), 0.0) if left else None

    def target_fraction(self, target: float | None) -> float | None:
        """Return the progress of the best score from the first one to the target, 0 to 1; None while unknown."""
        if target is None or self.first is None or self.best is None:
            return None
        if self.best.mean >= target or self.first.mean >= target:
            return 1.0
        return (self.best.mean - self.first.mean) / (target - self.first.mean)

    def has_failed_confirmation(self, target: float) -> bool:
        """True if fresh episodes did not confirm the newest version whose evaluation reached the target."""
        reached = [score.params_version for score in self.scores if score.mean >= target]
        played = [score.mean for score in self.confirmations if score.params_version in reached[-1:]]
        return bool(played) and max(played) < target

    def _ways(self, limits: RunSettings) -> tuple[tuple[float, float, float], ...]:
        """Return for each limit how far the run is, the limit (0 for none), and its rate per second."""
        learner = self.learner or LearnerStatus()
        updates_per_s = learner.steps_per_s if self.learner_answers else 0.0
        trained_s = max(self.earlier_s + self.elapsed_s, self.newest.wall_s if self.newest else 0.0)
        return (
            (learner.env_steps, limits.max_env_steps, self.env_steps_per_s),
            (learner.learner_steps, limits.max_learner_steps, updates_per_s),
            (trained_s, limits.max_wall_s, 1.0),
        )


def _without_training(learner: LearnerStatus, min_size: int) -> str:
    if learner.state is LearnerState.WAITING:
        if 0 < min_size <= learner.table_items:
            return "learner waits for new steps (learner.updates_per_env_step)"
        return f"learner waits for data ({learner.table_items:,} items in the table)"
    if learner.state is LearnerState.ENDED:
        return "the run has ended"
    return f"learner is {learner.state.name.lower()}"
