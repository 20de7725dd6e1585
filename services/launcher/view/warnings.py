"""Warnings of the live view: problems of a running cluster, and what to do about them.

Pure decisions: a sample and the time go in, lines come out. `StatusPoller` takes the samples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.replay.table_config import TableDescription
from tidemill.services.launcher.view.curves import describe_failures

FULL_BYTES = 32 * 2**20
"""With less than this left a disk counts as full: a checkpoint, a segment or a version may no longer fit."""

_NUMBERS = re.compile(r"\d[\d.,]*")
_LOW_BYTES = 2**30
_STALE_S = 30.0
_RECENT_S = 600.0


def kind_of(warning: str) -> str:
    """Return a warning without its numbers, which change from one moment to the next."""
    return _NUMBERS.sub("", warning)


@dataclass(frozen=True)
class ClusterSample:
    """Observations of a cluster at one moment.

    Attributes:
        learner: Status of the learner; None while it does not answer.
        tables: Tables of the replay services that answer.
        disk_free_bytes: Free space on the disk of the run's folder.
        env_failures: Failures of the environments of each actor since it started, by kind.
        refused: Version that has no score although it was played, and the reason; None once a later one has a score.
        left_out: Failed episodes of the newest evaluation or its confirmation, all of them, and which of the two it is;
            None if none failed.
    """

    learner: LearnerStatus | None
    tables: Sequence[TableDescription]
    disk_free_bytes: int
    env_failures: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    refused: tuple[int, str] | None = None
    left_out: tuple[int, int, str] | None = None

    @property
    def is_disk_full(self) -> bool:
        """Whether nothing more can be stored."""
        return self.disk_free_bytes < FULL_BYTES or any(table.log_full for table in self.tables)


class WarningTracker:
    """Warns of problems of a run. Services that wait for each other are its normal state, which gets no warning."""

    def __init__(
        self,
        folder: Path,
        publish_every: int,
        simulators_at: str = "",
        failed_before: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Take the settings of a run.

        Args:
            folder: Of the run.
            publish_every: Updates after which the learner publishes.
            simulators_at: Where simulators connect, in a run that has no actors; empty for any other.
            failed_before: Failures of environments that the actors of earlier sessions counted.
        """
        self._folder, self._publish_every, self._simulators_at = folder, publish_every, simulators_at
        self._played = (-1, 0.0)  # env steps, and when there was the last one
        self._env_failed = (failed_before or {}, -math.inf)  # failures so far, and when there was the last one
        self._published = (0, 0, 0.0)  # newest version, updates and time when it was first seen

    def warnings(self, sample: ClusterSample, now_s: float) -> tuple[str, ...]:
        """Return a line for each problem, the most serious first, with what to do.

        Args:
            sample: The present observations.
            now_s: Monotonic time in seconds.
        """
        found = [self._disk(sample)]
        if sample.learner is not None:
            found += [
                self._checkpoint(sample.learner),
                self._params(sample.learner, now_s),
                self._simulators(sample.learner, now_s),
            ]
        found.append(self._env_failures(sample.env_failures, now_s))
        if sample.refused is not None:
            found.append("version {:,} was not evaluated: {}".format(*sample.refused))
        if sample.left_out is not None:
            failed, episodes, kind = sample.left_out
            found.append(
                f"{failed:,} of {episodes:,} episodes of the newest {kind} failed and are left out of its mean: "
                f"reasons are in {self._folder / 'logs' / 'evaluator.log'}"
            )
        return tuple(line for line in found if line)

    def _disk(self, sample: ClusterSample) -> str:
        if sample.is_disk_full:
            mib = sample.disk_free_bytes / 2**20
            return (
                f"the disk of {self._folder} is full ({mib:,.0f} MiB free): nothing more is stored until there is "
                "room; delete or move what is not needed, such as old runs"
            )
        if sample.disk_free_bytes < _LOW_BYTES:
            mib = sample.disk_free_bytes / 2**20
            return f"{mib:,.0f} MiB left on the disk of {self._folder}: make room before it is full"
        return ""

    def _checkpoint(self, learner: LearnerStatus) -> str:
        if not learner.checkpoint_error:
            return ""
        kept = (
            f"that of step {learner.checkpoint_steps:,} is the newest" if learner.checkpoint_steps else "there is none"
        )
        return (
            f"the last checkpoint failed, {kept}: {learner.checkpoint_error}; "
            "fix that, then `tidemill ctl checkpoint` writes one at once"
        )

    def _params(self, learner: LearnerStatus, now_s: float) -> str:
        version, steps, seen_s = self._published
        if learner.params_version != version or learner.learner_steps < steps:
            self._published = (learner.params_version, learner.learner_steps, now_s)
            return ""
        late = learner.learner_steps - steps
        if late < 2 * self._publish_every or now_s - seen_s < _STALE_S:
            return ""
        return (
            f"no parameters were published for {now_s - seen_s:.0f} s and {late:,} updates: actors act by version "
            f"{version}; see {self._folder / 'logs' / 'paramserver.log'}"
        )

    def _simulators(self, learner: LearnerStatus, now_s: float) -> str:
        steps, seen_s = self._played
        if learner.env_steps != steps:
            self._played = steps, seen_s = learner.env_steps, now_s
        if not self._simulators_at or learner.state is not LearnerState.WAITING or now_s - seen_s < _STALE_S:
            return ""
        return (
            f"no simulator has played for {now_s - seen_s:.0f} s, and the learner waits for data: simulators connect "
            f"to {self._simulators_at}"
        )

    def _env_failures(self, failures: Mapping[str, Mapping[str, int]], now_s: float) -> str:
        known, seen_s = self._env_failed
        if any(own and known.get(actor) != own for actor, own in failures.items()):  # fewer: one that was started again
            seen_s = now_s
        self._env_failed = {**known, **failures}, seen_s
        if not any(failures.values()) or now_s - seen_s > _RECENT_S:
            return ""
        return (
            f"environments of the actors failed and were restarted ({describe_failures(failures)}): reasons are in "
            f"{self._folder / 'logs'}/actor-*.log"
        )
