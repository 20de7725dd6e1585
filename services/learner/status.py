"""What the learner tells its callers, put together from its parts."""

from __future__ import annotations

import time
from collections.abc import Callable

from tidemill.learner.status import LearnerState, LearnerStatus, ShardStatus
from tidemill.replay.shards.shard import ShardReport
from tidemill.services.learner.control import Control
from tidemill.services.learner.counters import Counters
from tidemill.services.learner.progress import Progress


class StatusBoard:
    """Written by the main thread as the learner starts and restores; read by the server's thread."""

    def __init__(self, control: Control, counters: Counters, progress: Progress, *, max_learner_steps: int) -> None:
        self._control, self._counters, self._progress = control, counters, progress
        self._max_learner_steps = max_learner_steps
        self._started = time.monotonic()
        self.restored = ""
        """What the start restored, in words."""
        self.shards: Callable[[], tuple[ShardReport, ...]] = tuple
        """Reports on the replay shards."""
        self.checkpoint_steps: Callable[[], int] = lambda: 0
        """Gradient steps in the newest checkpoint."""
        self.checkpoint_error: Callable[[], str] = str
        """Why the newest attempt at a checkpoint failed; empty if it did not."""

    def read(self) -> LearnerStatus:
        """Return the status at this moment."""
        progress, counters = self._progress, self._counters
        stopping = self._control.stop_reason is not None
        return LearnerStatus(
            state=LearnerState.STOPPING if stopping else progress.state,
            learner_steps=counters.learner_steps,
            env_steps=counters.env_steps,
            steps_per_s=progress.steps_per_s,
            wait_fraction=progress.wait_fraction,
            params_version=counters.version,
            generation=counters.generation,
            checkpoint_steps=self.checkpoint_steps(),
            table_items=progress.table_items,
            metrics=progress.metrics,
            uptime_s=time.monotonic() - self._started,
            max_learner_steps=self._max_learner_steps,
            restored=self.restored,
            checkpoint_error=self.checkpoint_error(),
            shards=tuple(_shard_status(report) for report in self.shards()),
        )


def _shard_status(report: ShardReport) -> ShardStatus:
    return ShardStatus(report.name, report.address, report.live, report.items, report.total_weight, report.samples)
