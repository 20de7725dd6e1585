"""The pace of most runs: the learner trains on what comes, and the table's rate limiter holds it back."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from tidemill.config.sections import LearnerConfig
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Agent
from tidemill.services.learner.counters import Counters
from tidemill.services.learner.data.batch_loader import BatchLoader
from tidemill.services.learner.data.decoder import make_decoder
from tidemill.services.learner.data.mirror import mirror_for
from tidemill.services.learner.data.priorities import PriorityWriter
from tidemill.services.learner.data.table import batches_per_sample, open_sampler, table_config
from tidemill.services.learner.distributed.learner_group import RankInfo
from tidemill.services.learner.pace import Feed, Learning
from tidemill.services.learner.trainer import TrainerOutputs
from tidemill.types import Signature


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
        self._local_batch_size = rank.local_batch_size(config.agent.batch_size)
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
        cluster, settings, table = self._config.cluster, self._config.learner, learning.table
        splits = batches_per_sample(self._config.table, settings, table.signature, self._config.agent.batch_size)
        size, in_flight = self._local_batch_size * splits, settings.decode_threads + 1
        # those on their way, those being read, and one for safety
        hold = 2 * settings.decode_threads + 2
        mirror = mirror_for(
            self._config, table, learning.agent, sample_size=size, hold=hold, learners=self._rank.local_size
        )
        sampler = open_sampler(cluster, directory, table, size, in_flight, mirror, stack)
        priorities = self._priorities(sampler, stack)
        batches = stack.enter_context(closing(self._batches(learning, sampler, mirror, splits)))

        def close() -> None:
            if priorities is not None:
                priorities.close()  # before the connection that it shares
            batches.close()

        return Feed(batches, replace(outputs, priorities=priorities), sampler.shards, close)

    def _priorities(self, sampler: ReplaySampler, stack: ExitStack) -> PriorityWriter | None:
        if self._config.table.sampler != "prioritized":
            return None
        send = partial(sampler.update_priorities, fencing_token=self._counters.fencing_token)
        return stack.enter_context(closing(PriorityWriter(send)))

    def _batches(
        self, learning: Learning, sampler: ReplaySampler, mirror: TableMirror | None, splits: int
    ) -> BatchLoader:
        settings, counters = self._config.learner, self._counters
        agent, table, device, delete = learning.agent, learning.table, learning.device, sampler.delete_items
        decoder = make_decoder(self._config, agent, table, device, counters, delete, splits=splits, mirror=mirror)
        return BatchLoader(
            sampler,
            decoder.decode,
            counters,
            threads=settings.decode_threads,
            prefetch_samples=-(-settings.prefetch_batches // splits),
            clock=time.monotonic,
        )
