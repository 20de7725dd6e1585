"""Pace of a learner: when it samples, publishes and writes checkpoints.

Most learners train on what comes, and the table's rate limiter holds them back; those in lock-step have another pace
(`services/learner/lock_step/pace.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch

from tidemill.config.sections import LearnerConfig
from tidemill.learner.status import SourceStatus
from tidemill.replay.sampling.shard_report import ShardReport
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Agent
from tidemill.services.learner.checkpoint.resume import HasState
from tidemill.services.learner.data.dataset import open_dataset
from tidemill.services.learner.data.decoder import DatasetBatches
from tidemill.services.learner.data.sources import SourceReports, open_sources, own_items
from tidemill.services.learner.data.table import batches_per_sample, table_config
from tidemill.services.learner.distributed.learner_group import RankInfo
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.status.metrics import collect
from tidemill.services.learner.training.threads import Threads
from tidemill.services.learner.training.trainer import BatchSource, TrainerOutputs
from tidemill.types import EnvSpec, Signature


@dataclass
class Learning:
    """A learning agent and the table it learns from.

    The agent is replaced in place: whoever holds this does not keep the memory of the one before.

    Attributes:
        agent: Owns the networks.
        table: The table it learns from.
        device: Where it computes.
        spec: Of the environment.
        threads: Chooses how many compute an update; None if their number is fixed.
        eager: Makes the agent without recorded updates, for an agent that records them; None for any other.
    """

    agent: Agent
    table: TableConfig
    device: torch.device
    spec: EnvSpec
    threads: Threads | None = None
    eager: Callable[[], Agent] | None = None


@dataclass(frozen=True)
class Feed:
    """Connections of the trainer.

    Attributes:
        batches: Where batches come from.
        outputs: Where results go.
        shards: Returns what is known of each replay shard of the run's own table.
        sources: Returns what is known of each source.
        close: Sends the priorities that wait, then ends sampling: what still arrives is not trained on.
    """

    batches: BatchSource
    outputs: TrainerOutputs
    shards: Callable[[], tuple[ShardReport, ...]]
    sources: Callable[[], tuple[SourceStatus, ...]]
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

    def open(self, learning: Learning, outputs: TrainerOutputs, directory: ShardDirectory, stack: ExitStack) -> Feed:
        """Start to sample the table, which exists; `stack` ends it.

        Args:
            learning: What learns.
            outputs: Where results go, without the priorities.
            directory: The replay servers.
            stack: Closes what is opened.
        """


class FreeRunning:
    """Samples, decodes and sends priorities in the background (`Pace`)."""

    syncs_checkpoints = True
    kept_priorities = None

    def __init__(self, config: LearnerConfig, counters: Counters, rank: RankInfo) -> None:
        """Take the settings, the learner's counters and which rank it is.

        Raises:
            ConfigError: The ranks cannot divide the batch.
        """
        self._config, self._counters, self._rank = config, counters, rank
        self._local_batch_size = rank.local_batch_size(config)
        self.publish_every = config.learner.publish_every
        self.checkpoint_every_s = config.learner.checkpoint_every_s

    def prepare(self) -> None:
        """Do nothing (`Pace`)."""

    def table(self, agent: Agent, signature: Signature) -> TableConfig:
        """Return the table to create (`Pace`)."""
        config = self._config
        return table_config(config.table, config.learner, agent, signature, own_items(config))

    def open(self, learning: Learning, outputs: TrainerOutputs, directory: ShardDirectory, stack: ExitStack) -> Feed:
        """Start to sample (`Pace`)."""
        settings, table = self._config.learner, learning.table
        own = own_items(self._config)
        splits = batches_per_sample(self._config.table, settings, table.signature, own, table.max_item_steps)
        mixture = open_sources(self._config, table)
        # of a queue each item is drawn once: a rank that drew ahead would hold what another waits for
        on_demand = self._rank.size > 1 and bool(table.max_times_sampled)
        threads = 0 if on_demand else settings.decode_threads
        counters = self._counters
        dataset = open_dataset(
            self._config,
            learning.agent,
            table,
            learning.device,
            batch_size=self._local_batch_size,
            splits=splits,
            threads=threads,
            in_flight=0 if on_demand else threads + 1,
            decoded=-(-settings.prefetch_batches // splits),
            counters=counters,
            learner_steps=lambda: counters.learner_steps,
            directory=directory,
            rank=self._rank,
            group=outputs.group,
            mixture=mixture,
            action_options=learning.spec.action_options,
        )
        stack.enter_context(dataset)
        collect(dataset, stack)
        outputs = replace(
            outputs,
            priorities=dataset.priorities if mixture.prioritized else None,
            prioritized=mixture.prioritized,
            sources=SourceReports(settings.sources),
        )
        shards = partial(dataset.shards, 0)  # of the run's own table
        return Feed(DatasetBatches(dataset), outputs, shards, outputs.sources.read, dataset.close)
