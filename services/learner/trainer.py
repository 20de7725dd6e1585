"""The training loop: one gradient step after the other, and what has to happen between two of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from services.learner import metrics
from services.learner.checkpointer import Checkpointer
from services.learner.control import Control
from services.learner.counters import Counters
from services.learner.decoder import Batch
from services.learner.progress import Progress
from tidemill.rl.agents.interface import Agent

_POLL_S = 0.2  # longest the thread is deaf to requests while there is no batch


class Source(Protocol):
    """Where batches come from."""

    def take(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None if there is none in time; 0 does not wait."""


class Priorities(Protocol):
    """Where new priorities go."""

    def offer(self, keys: NDArray[np.uint64], priority: Tensor) -> None:
        """Take the priorities of one update; never blocks."""

    def flush(self) -> None:
        """Have what was taken sent; never blocks."""


class Publisher(Protocol):
    """Where parameters go."""

    @property
    def version(self) -> int:
        """Newest version that was acknowledged; 0 before the first."""

    def publish(self) -> None:
        """Take the agent's parameters as they are now; never blocks."""

    def check(self) -> None:
        """Raise what has ended publishing for good, such as a newer learner."""


@dataclass(frozen=True)
class Outlets:
    """Where the results of training go.

    Attributes:
        priorities: None for a table whose sampler has no use for them.
        publisher: Takes parameters.
        checkpointer: Takes checkpoints.
    """

    priorities: Priorities | None
    publisher: Publisher
    checkpointer: Checkpointer


@dataclass(frozen=True)
class Limits:
    """When training is over; 0 means no limit."""

    max_learner_steps: int = 0
    """Gradient steps."""
    max_env_steps: int = 0
    """Agent decisions."""
    publish_every: int = 100
    """Gradient steps between two published versions, at least 1."""

    def reached(self, counters: Counters) -> str | None:
        """Return which limit the counters have reached, in words, or None."""
        if 0 < self.max_learner_steps <= counters.learner_steps:
            return f"run.max_learner_steps ({self.max_learner_steps}) reached"
        if 0 < self.max_env_steps <= counters.env_steps:
            return f"run.max_env_steps ({self.max_env_steps}) reached"
        return None


class Trainer:
    """Owns the gradient: takes batches, updates the agent, hands out what comes of it."""

    def __init__(
        self,
        agent: Agent,
        batches: Source,
        outlets: Outlets,
        control: Control,
        counters: Counters,
        progress: Progress,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent, self._batches = agent, batches
        self._priorities, self._publisher = outlets.priorities, outlets.publisher
        self._checkpointer, self._control, self._counters = outlets.checkpointer, control, counters
        self._progress, self._limits, self._clock = progress, limits, clock

    def run(self) -> str:
        """Train until asked to stop or until a limit is reached; return the reason.

        Raises:
            TidemillError: A part can no longer do its work; the message says which and why.
        """
        while (reason := self._control.stop_reason or self._limits.reached(self._counters)) is None:
            self._counters.version = self._publisher.version or self._counters.version
            self._checkpointer.poll(self._control, self._counters.learner_steps)
            if self._control.paused:
                self._pause()
            elif (batch := self._batches.take(0.0) or self._wait_for_batch()) is not None:
                self._step(batch)
        return reason

    def _step(self, batch: Batch) -> None:
        batch.transferred.wait()
        started = self._clock()
        update = self._agent.update(batch.columns, batch.weight)
        seconds = self._clock() - started
        self._counters.learner_steps += 1
        if self._priorities is not None:
            self._priorities.offer(batch.keys, update.priority)
        if self._counters.learner_steps % self._limits.publish_every == 0:
            self._publisher.publish()
        self._observe(batch, started)
        self._progress.stepped(seconds, update.metrics)

    def _wait_for_batch(self) -> Batch | None:
        if self._priorities is not None:
            self._priorities.flush()  # the table may be waiting for nothing else
        started = self._clock()
        batch = self._batches.take(_POLL_S)
        self._progress.waited(self._clock() - started, in_vain=batch is None)
        self._publisher.check()
        return batch

    def _pause(self) -> None:
        started = self._clock()
        self._control.wait(_POLL_S)
        self._progress.paused(self._clock() - started)
        self._publisher.check()

    def _observe(self, batch: Batch, now: float) -> None:
        self._progress.table_items = batch.table_items
        metrics.BATCH_AGE_SECONDS.set(now - batch.received_at)
        metrics.POLICY_LAG.set(max(self._counters.version - batch.params_version, 0.0))
