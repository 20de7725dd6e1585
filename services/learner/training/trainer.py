"""The training loop: updates, and the work between two of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import structlog
from torch import Tensor

from tidemill.errors import ConfigError
from tidemill.replay.sampling.priorities import PrioritySender
from tidemill.rl.agents.interface import Agent, Update
from tidemill.services.learner.checkpoint.checkpointer import Checkpointer
from tidemill.services.learner.data.decoder import Batch
from tidemill.services.learner.data.device import DeviceBacklog
from tidemill.services.learner.data.sources import SourceReports
from tidemill.services.learner.distributed.learner_group import LearnerGroup, SingleLearner, StepVote
from tidemill.services.learner.status import metrics
from tidemill.services.learner.status.control import Control
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.status.divergence import Diverged
from tidemill.services.learner.status.fence import superseded
from tidemill.services.learner.status.progress import Progress
from tidemill.services.learner.training.threads import Threads
from tidemill.tracing import tracer

_UNDETERMINED = " does not have a deterministic implementation"
"""What torch says of an operation's kernel where it must be deterministic."""

_POLL_S = 0.2  # how soon the thread notices a request while there is no batch

_RENEW_AFTER_S, _RENEW_AT_MOST_S = 5.0, 60.0
"""Seconds without an update until the newest version is checked, twice as many to each check that follows, and the
most."""

_LATE_BATCHES = 10
"""Consecutive batches with a greater policy lag than is set before a warning; after a restart, too, since what
was drawn before goes back to the table (docs/adr/0040-on-policy-pacing.md)."""

_log = structlog.get_logger()


class BatchSource(Protocol):
    """Source of batches."""

    def take(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None if there is none in time; 0 does not wait."""


class Publisher(Protocol):
    """Destination of parameters."""

    @property
    def version(self) -> int:
        """Newest version that was acknowledged; 0 before the first."""

    def publish(self) -> None:
        """Take the agent's parameters as they are now; never blocks."""

    def renew(self) -> None:
        """Have the newest version published again if it was lost; never blocks."""

    def check(self) -> None:
        """Raise the error that ended publishing, such as a newer learner."""


@dataclass(frozen=True)
class TrainerOutputs:
    """Destinations of the results of training, and the other ranks.

    Attributes:
        priorities: None if no table is drawn by priority.
        publisher: Takes parameters; None on every rank but the first.
        checkpointer: Takes checkpoints; None on every rank but the first.
        group: The processes that make each update together; only this one if not given.
        on_publish: Called with each acknowledged version that was noticed; must not block.
        prioritized: Numbers of the tables that are drawn by priority.
        sources: Count what comes from each source.
        threads: Take how long updates were, and choose the threads for those that follow; None if they are fixed.
    """

    priorities: PrioritySender | None
    publisher: Publisher | None = None
    checkpointer: Checkpointer | None = None
    group: LearnerGroup = field(default_factory=SingleLearner)
    on_publish: Callable[[int], None] = lambda _: None
    prioritized: frozenset[int] = frozenset((0,))
    sources: SourceReports = field(default_factory=lambda: SourceReports({}))
    threads: Threads | None = None


@dataclass(frozen=True)
class Limits:
    """Limits at which training is over; 0 means no limit."""

    max_learner_steps: int = 0
    """Updates."""
    max_env_steps: int = 0
    """Agent decisions."""
    publish_every: int = 100
    """Updates between two published versions, at least 1."""
    publish_least_s: float = 0.0
    """Least seconds between two published versions besides."""
    max_policy_lag: int = -1
    """Most versions that an item may be behind when it is trained on; -1: any number."""

    def reached(self, counters: Counters) -> str | None:
        """Return a description of the limit that the counters have reached, or None."""
        if 0 < self.max_learner_steps <= counters.learner_steps:
            return f"run.max_learner_steps ({self.max_learner_steps}) reached"
        if 0 < self.max_env_steps <= counters.env_steps:
            return f"run.max_env_steps ({self.max_env_steps}) reached"
        return None


class Trainer:
    """Owns the gradient: takes batches, updates the agent, hands out the results."""

    def __init__(
        self,
        agent: Agent,
        batches: BatchSource,
        outputs: TrainerOutputs,
        control: Control,
        counters: Counters,
        progress: Progress,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the parts; the agent must be set to the group of `outputs`."""
        self._group = outputs.group
        self._agent, self._batches = agent, batches
        self._priorities, self._publisher = outputs.priorities, outputs.publisher
        self._checkpointer, self._control, self._counters = outputs.checkpointer, control, counters
        self._progress, self._limits, self._clock = progress, limits, clock
        self._on_publish, self._prioritized = outputs.on_publish, outputs.prioritized
        self._sources, self._threads = outputs.sources, outputs.threads
        self._batch: Batch | None = None
        self._backlog = DeviceBacklog()
        self._voting: Callable[[], StepVote] | None = None
        self._published_at = -math.inf
        self._moved_at, self._renew_after_s = clock(), _RENEW_AFTER_S
        self._late_batches = 0
        self.is_over = False
        """Whether all ranks have ended for good; otherwise a signal to one of them interrupted all."""
        self.is_at_limit = False
        """Whether a rank has reached a limit; each counts agent decisions by the samples that it has received."""

    def run(self) -> str:
        """Train until asked to stop or until a limit is reached; return the reason.

        All ranks stop, pause and step together: they agree on it before each step, so that none of them waits in
        an update for one that makes none.

        Raises:
            Diverged: Numbers are not finite; the other ranks stop, too.
            TidemillError: A part can no longer do its work; the message says which and why.
        """
        try:
            return self._run()
        except Diverged:
            self._leave_vote()
            raise

    def _run(self) -> str:
        while True:
            is_ahead = self._voting is not None
            if not is_ahead and self._ends() is None:
                self._between_steps()
            agreed = self._agreed(must_stop=not is_ahead and self._ends() is not None)
            if agreed.stop:
                return self._ends() or "another rank stopped"
            if agreed.pause:
                self._pause()
            elif agreed.lacks_batch:
                self._renew()
            else:
                self._step(agreed.largest_weight)

    def _ends(self) -> str | None:
        return self._control.stop_reason or self._limits.reached(self._counters)

    def _between_steps(self) -> None:
        if self._publisher is not None and (version := self._publisher.version) not in (0, self._counters.version):
            self._counters.version = version
            self._on_publish(version)
        self._progress.check()
        if self._checkpointer is not None:
            self._checkpointer.poll(self._control, self._counters.learner_steps)

    def _agreed(self, *, must_stop: bool) -> StepVote:
        """Return the result of all ranks' votes: of the vote in progress, or of one that this rank starts now."""
        if self._voting is None:
            vote = self._vote(must_stop=must_stop)
            if self._group.size == 1:
                self.is_over, self.is_at_limit = vote.is_over, vote.at_limit
                return vote
            self._voting = self._group.begin_vote(vote)
        started = self._clock()
        agreed = self._voting()
        self._voting = None
        waited_s = self._clock() - started
        if agreed.pause:  # only the first rank hears of a pause: the others spend it waiting for its votes
            self._progress.record_pause(waited_s)
        else:
            self._progress.record_rank_wait(waited_s)
        self.is_over, self.is_at_limit = agreed.is_over, agreed.at_limit
        return agreed

    def _vote(self, *, must_stop: bool) -> StepVote:
        """Get a batch, unless training is paused or ending, and return this rank's vote."""
        paused = self._control.paused
        if self._batch is None and not must_stop and not paused:
            self._batch = self._batches.take(0.0) or self._wait_for_batch()
        largest_weight = 0.0 if self._batch is None else self._batch.largest_weight
        at_limit = self._limits.reached(self._counters) is not None
        is_over = must_stop and (at_limit or not self._control.is_interrupted)
        return StepVote(must_stop, paused, self._batch is None, largest_weight, is_over, at_limit)

    def _vote_ahead(self) -> None:
        """Vote for the next step while the device computes this one, if there is a batch and nothing to say besides."""
        if self._group.size == 1 or self._control.paused or self._ends() is not None:
            return
        self._between_steps()
        self._batch = self._batches.take(0.0)
        if self._batch is not None:
            vote = StepVote(stop=False, pause=False, lacks_batch=False, largest_weight=self._batch.largest_weight)
            self._voting = self._group.begin_vote(vote)

    def _leave_vote(self) -> None:
        """Make the other ranks stop; first make the step to which this one has agreed, for they wait in it."""
        if self._voting is not None:
            agreed = self._agreed(must_stop=False)
            if agreed.stop:
                return
            if not agreed.pause and not agreed.lacks_batch:
                batch, _ = self._update(agreed.largest_weight)
                self._backlog.add(batch.device_batch)
        self._agreed(must_stop=True)

    def _step(self, largest_weight: float) -> None:
        started = self._clock()
        batch, update = self._update(largest_weight)
        launched = self._clock()
        if self._threads is not None:
            self._threads.record(launched - started)
        self._counters.learner_steps += 1
        if self._priorities is not None:  # before a round of lock-step ends, whose checkpoint holds them
            with superseded():
                self._send_priorities(self._priorities, batch, update.priority)
        if self._publisher is not None and self._counters.learner_steps % self._limits.publish_every == 0:
            self._publish(self._publisher)
        self._record(batch, started)  # before the next version is noticed
        self._vote_ahead()
        voted = self._clock()
        self._moved_at = voted
        self._backlog.add(batch.device_batch)
        seconds = launched - started + self._clock() - voted
        if batch.replay.traces and (own := tracer()) is not None:
            own.used(batch.replay, started, self._clock(), {"learner_steps": self._counters.learner_steps})
        self._progress.record_step(seconds, update.metrics)

    def _send_priorities(self, sender: PrioritySender, batch: Batch, priority: Tensor) -> None:
        """Hand over the priorities of a batch, [B], each to the table that its item is from."""
        if not batch.sizes:
            sender.send(batch.keys, priority)
            return
        for table, items in batch.tables():
            if table in self._prioritized:
                sender.send(batch.keys[items], priority[items], table)

    def _update(self, largest_weight: float) -> tuple[Batch, Update]:
        """Update the agent; return the batch and what the update reports.

        Raises:
            ConfigError: An operation has no deterministic kernel, which torch says when it is called.
        """
        batch, self._batch = self._batch, None
        assert batch is not None  # the ranks have agreed that none lacks one
        batch.device_batch.wait()
        try:
            return batch, self._agent.update(batch.columns, _scaled(batch, largest_weight))
        except RuntimeError as error:
            operation, undetermined, _ = str(error).partition(_UNDETERMINED)
            if not undetermined:
                raise
            raise ConfigError(
                f"run.deterministic is true, but {operation}, which the network's update needs,{_UNDETERMINED} on this "
                "device; set learner.device cpu, or take another agent.network"
            ) from error

    def _publish(self, publisher: Publisher) -> None:
        """Publish, unless the last time is less than `publish_least_s` ago."""
        now = self._clock()
        if now - self._published_at >= self._limits.publish_least_s:
            self._published_at = now
            publisher.publish()

    def _renew(self) -> None:
        """Check the newest version now and then: where the server has lost it, actors may wait for it."""
        now = self._clock()
        if self._publisher is not None and now - self._moved_at >= self._renew_after_s:
            self._moved_at, self._renew_after_s = now, min(2 * self._renew_after_s, _RENEW_AT_MOST_S)
            self._publisher.renew()

    def _wait_for_batch(self) -> Batch | None:
        if self._priorities is not None:
            with superseded():
                self._priorities.flush()  # the table may be waiting for exactly these
        started = self._clock()
        with superseded():
            batch = self._batches.take(_POLL_S)
        self._progress.record_wait(self._clock() - started, got_batch=batch is not None)
        self._check_publisher()
        return batch

    def _pause(self) -> None:
        started = self._clock()
        self._control.wait(_POLL_S)
        self._progress.record_pause(self._clock() - started)
        self._check_publisher()

    def _check_publisher(self) -> None:
        if self._publisher is not None:
            self._publisher.check()

    def _record(self, batch: Batch, now: float) -> None:
        replay, versions = batch.replay, batch.params_versions
        lag = self._counters.version - versions[versions > 0]  # 0: the action was not a version's
        self._progress.table_items = int(replay.table_items[0])
        metrics.BATCH_AGE_SECONDS.set(now - replay.received_at)
        if lag.size:
            self._progress.policy_lag = max(float(lag.mean()), 0.0)
            metrics.POLICY_LAG.set(self._progress.policy_lag)
            metrics.ITEM_POLICY_LAG.observe(np.maximum(lag, 0.0))
            self._check_lag(float(lag.max()))
        metrics.ITEM_AGES.observe(replay, batch.own_items, now)
        self._sources.record(batch, now)

    def _check_lag(self, lag: float) -> None:
        """Warn, once, when batch after batch has items that are older than `learner.max_policy_lag` allows."""
        is_late = 0 <= self._limits.max_policy_lag < lag
        self._late_batches = self._late_batches + 1 if is_late else 0
        if self._late_batches == _LATE_BATCHES:
            _log.warning(
                "items stay older than learner.max_policy_lag allows: more actors than actor.count, or a restart",
                policy_lag=lag,
                max_policy_lag=self._limits.max_policy_lag,
            )


def _scaled(batch: Batch, largest_weight: float) -> Tensor:
    """Return the weights divided by the largest of all ranks' batches instead of this one's."""
    if batch.largest_weight == largest_weight:
        return batch.weight
    return batch.weight * (batch.largest_weight / largest_weight)
