"""The pace of most runs: the learner trains on what comes, and the table's rate limiter holds it back."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from tidemill.config.sections import LearnerConfig
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Agent
from tidemill.services.learner.counters import Counters
from tidemill.services.learner.data.batch_loader import BatchLoader
from tidemill.services.learner.data.decoder import make_decoder
from tidemill.services.learner.data.priorities import PriorityWriter
from tidemill.services.learner.data.sampling import SampleShape, Sampling, open_sampling
from tidemill.services.learner.data.table import batches_per_sample, table_config
from tidemill.services.learner.data.table_sampler import TableSampler
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
        settings, table = self._config.learner, learning.table
        splits = batches_per_sample(self._config.table, settings, table.signature, self._config.agent.batch_size)
        size = self._local_batch_size * splits
        # those on their way, those being read, and one for safety
        hold = 2 * settings.decode_threads + 2
        shape = SampleShape(size, learning.agent.window.stride, settings.decode_threads + 1, hold)
        sampling = open_sampling(self._config, directory, table, shape, self._rank, outputs.group, stack)
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
        delete, mirror = sampling.sampler.delete_items, sampling.mirror
        decoder = make_decoder(self._config, agent, table, device, counters, delete, splits=splits, mirror=mirror)
        return BatchLoader(
            sampling.source,
            decoder.decode,
            counters,
            threads=settings.decode_threads,
            prefetch_samples=-(-settings.prefetch_batches // splits),
            clock=time.monotonic,
        )
