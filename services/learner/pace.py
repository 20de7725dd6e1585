"""When a learner samples, publishes and writes checkpoints: what every pace has, and the pace of most runs.

Most learners train on what comes, and the table's rate limiter holds them back; those in lock-step have another pace
(`lock_step/pace.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch

from tidemill.config.sections import LearnerConfig
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.shards.shard import ShardReport
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Agent
from tidemill.services.learner.checkpoint.resume import HasState
from tidemill.services.learner.counters import Counters
from tidemill.services.learner.data.batch_loader import BatchLoader
from tidemill.services.learner.data.decoder import make_decoder
from tidemill.services.learner.data.kept_rows import SampleShape, mirror_device
from tidemill.services.learner.data.priorities import PriorityWriter
from tidemill.services.learner.data.sampling import Sampling, open_sampling
from tidemill.services.learner.data.table import batches_per_sample, table_config
from tidemill.services.learner.data.table_sampler import TableSampler
from tidemill.services.learner.distributed.learner_group import RankInfo
from tidemill.services.learner.trainer import BatchSource, TrainerOutputs
from tidemill.types import Signature


@dataclass(frozen=True)
class Learning:
    """What learns from which table.

    Attributes:
        agent: Owns the networks.
        table: The table it learns from.
        device: Where it computes.
    """

    agent: Agent
    table: TableConfig
    device: torch.device


@dataclass(frozen=True)
class Feed:
    """What the trainer is connected to.

    Attributes:
        batches: Where batches come from.
        outputs: Where results go.
        shards: Returns what is known of each replay shard.
        close: Sends the priorities that wait, then ends sampling: what still arrives is not trained on.
    """

    batches: BatchSource
    outputs: TrainerOutputs
    shards: Callable[[], tuple[ShardReport, ...]]
    close: Callable[[], None]


class Pace(Protocol):
    """When a learner samples, publishes and writes checkpoints."""

    @property
    def publish_every(self) -> int:
        """Updates between two published versions."""

    @property
    def checkpoint_every_s(self) -> float:
        """Seconds between two checkpoints besides those on request; 0 for none."""

    @property
    def syncs_checkpoints(self) -> bool:
        """Whether a checkpoint waits for the disk, so that it outlives a loss of power."""

    @property
    def kept_priorities(self) -> HasState | None:
        """What a checkpoint keeps besides; None for nothing."""

    def prepare(self) -> None:
        """Do what comes before anything is computed.

        Raises:
            ConfigError: The run was started with other settings.
        """

    def table(self, agent: Agent, signature: Signature) -> TableConfig:
        """Return the table to create, with the columns of a signature.

        Raises:
            ConfigError: The table cannot hold the ratio of updates to agent decisions.
        """

    def open(
        self, learning: Learning, outputs: TrainerOutputs, directory: ShardDirectory | None, stack: ExitStack
    ) -> Feed:
        """Start to sample the table, which exists; `stack` ends it.

        Args:
            learning: What learns.
            outputs: Where results go, without the priorities.
            directory: The replay shards; None for a single server.
            stack: Closes what is opened.
        """


class FreeRunning:
    """Samples, decodes and sends priorities in the background (`Pace`)."""

    syncs_checkpoints = True
    kept_priorities = None

    def __init__(self, config: LearnerConfig, counters: Counters, rank: RankInfo) -> None:
        """Take the settings, the learner's counters and which rank it is.

        Raises:
            ConfigError: The ranks cannot divide the batch evenly.
        """
        self._config, self._counters, self._rank = config, counters, rank
        self._local_batch_size = rank.local_batch_size(config.agent)
        self.publish_every = config.learner.publish_every
        self.checkpoint_every_s = config.learner.checkpoint_every_s

    def prepare(self) -> None:
        """Do nothing (`Pace`)."""

    def table(self, agent: Agent, signature: Signature) -> TableConfig:
        """Return the table to create (`Pace`)."""
        config = self._config
        return table_config(config.table, config.learner, agent, signature, config.agent.batch_size)

    def open(
        self, learning: Learning, outputs: TrainerOutputs, directory: ShardDirectory | None, stack: ExitStack
    ) -> Feed:
        """Start to sample (`Pace`)."""
        settings, table = self._config.learner, learning.table
        splits = batches_per_sample(self._config.table, settings, table.signature, self._config.agent.batch_size)
        size = self._local_batch_size * splits
        # those on their way, those being read, and one for safety
        hold = 2 * settings.decode_threads + 2
        shape = SampleShape(size, learning.agent.window.stride, settings.decode_threads + 1, hold)
        on = mirror_device(self._config, learning.agent, learning.device)
        sampling = open_sampling(self._config, directory, table, shape, self._rank, outputs.group, stack, on)
        priorities = self._priorities(sampling.sampler, stack)
        batches = stack.enter_context(closing(self._batches(learning, sampling, splits)))

        def close() -> None:
            if priorities is not None:
                priorities.close()  # before the connection that it shares
            batches.close()

        return Feed(batches, replace(outputs, priorities=priorities), sampling.sampler.shards, close)

    def _priorities(self, sampler: TableSampler, stack: ExitStack) -> PriorityWriter | None:
        if self._config.table.sampler != "prioritized":
            return None
        send = partial(sampler.update_priorities, fencing_token=self._counters.fencing_token)
        return stack.enter_context(closing(PriorityWriter(send)))

    def _batches(self, learning: Learning, sampling: Sampling, splits: int) -> BatchLoader:
        settings, counters = self._config.learner, self._counters
        agent, table, device = learning.agent, learning.table, learning.device
        delete, kept = sampling.sampler.delete_items, sampling.kept
        decoder = make_decoder(self._config, agent, table, device, counters, delete, splits=splits, kept=kept)
        return BatchLoader(
            sampling.source,
            decoder.decode,
            counters,
            threads=settings.decode_threads,
            prefetch_samples=-(-settings.prefetch_batches // splits),
            clock=time.monotonic,
        )
