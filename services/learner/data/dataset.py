"""The dataset that a learner takes its batches from, and what it sends back to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.config.sections import LearnerConfig
from tidemill.config.table import TableSettings
from tidemill.devices import use_device
from tidemill.replay.batch import SampledBatch
from tidemill.replay.chunk import SMALLEST_PRIORITY
from tidemill.replay.sampling.dataset import Decoding, ReplayDataset
from tidemill.replay.sampling.priorities import PriorityMessages
from tidemill.replay.sampling.schedule import Schedule
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Agent
from tidemill.rl.settings.registry import ALGORITHMS
from tidemill.services.learner.data.decoder import ToDevice, decoded_later
from tidemill.services.learner.data.sampling import LearnerRows, mirror_device
from tidemill.services.learner.data.sources import (
    Mixture,
    clipping_rewards,
    joined_columns,
    refusing_actions,
    refusing_undecided,
)
from tidemill.services.learner.distributed.learner_group import LearnerGroup, RankInfo
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.status.divergence import check_finite


def read_priorities(parts: list[Tensor]) -> NDArray[np.float64]:
    """Return the priorities of updates, each [B] on one device, as the table takes them, float64 [N].

    Raises:
        Diverged: They are not finite.
    """
    use_device(parts[0].device)
    priorities = torch.cat(parts).cpu().numpy().astype(np.float64)
    check_finite([priorities], "priorities")
    return priorities + SMALLEST_PRIORITY


BY_SIXTEEN = PriorityMessages(updates=16, read=read_priorities)
"""A message is worth its cost with so many updates, and their priorities are not old yet."""


def importance_sampling_exponent(
    settings: TableSettings, learner_steps: int, prioritized: Collection[int] = ()
) -> float:
    """Return beta after some updates: linear from its first to its final value, then constant.

    Args:
        settings: Of the run's own table.
        learner_steps: The updates.
        prioritized: `Mixture.prioritized`. If no table draws by priority, beta is 0, which makes all weights 1.
    """
    if settings.sampler != "prioritized" and not prioritized:
        return 0.0
    if settings.importance_sampling_steps == 0:
        return settings.importance_sampling_exponent
    share = min(learner_steps / settings.importance_sampling_steps, 1.0)
    first, final = settings.importance_sampling_exponent, settings.importance_sampling_exponent_final
    return first + share * (final - first)


def open_dataset(  # noqa: PLR0913 - the parts of a learner that meet here
    config: LearnerConfig,
    agent: Agent,
    table: TableConfig,
    device: torch.device,
    *,
    batch_size: int,
    splits: int,
    threads: int,
    in_flight: int,
    decoded: int,
    counters: Counters,
    learner_steps: Callable[[], int],
    directory: ShardDirectory,
    rank: RankInfo,
    group: LearnerGroup,
    mixture: Mixture | None = None,
    action_options: Sequence[int] = (),
    schedule: Schedule | None = None,
    priorities: PriorityMessages = BY_SIXTEEN,
) -> ReplayDataset:
    """Start to sample a table, which exists.

    Args:
        config: The learner's settings.
        agent: Its agent.
        table: The table.
        device: Where batches go.
        batch_size: Items of a batch of this rank.
        splits: Batches of a sample.
        threads: Threads that decode; 0 decodes in the training thread.
        in_flight: Samples that may be under way or ready to be decoded; 0 draws one when it is taken.
        decoded: With threads, decoded samples held ready.
        counters: Learn the count of agent decisions that each sample carries.
        learner_steps: Returns the updates that the schedule of importance weights follows.
        directory: The replay servers.
        rank: Which of the ranks it is.
        group: All of them.
        mixture: The table and further ones, with their fractions of a batch; None for the table alone.
        action_options: Options of each discrete choice of an action; empty for continuous actions.
        schedule: How samples are drawn in lock-step.
        priorities: How new priorities are put into messages.
    """
    by_priority = frozenset[int]() if mixture is None else mixture.prioritized
    rows = LearnerRows(
        config,
        rank,
        group,
        stride=agent.window.stride,
        device=mirror_device(config, agent, device),
    )

    to_device = ToDevice(agent, device, lambda: rows.on_device, mixture.weights if mixture is not None else (1.0,))
    clipping = clipping_rewards(to_device, clips=config.env.clips_rewards)
    sources = tuple(config.learner.sources)
    is_own = config.agent.algorithm not in ALGORITHMS  # the project's with replay draw no action beyond [-1, 1]
    first = agent.window.history
    acting = None if agent.recurrent_state_size else slice(first, None if is_own else first + 1)
    transform = refusing_actions(clipping, sources, action_options, acting, may_exceed=is_own)

    def count(sample: SampledBatch) -> None:
        for shard, stored in sample.stored.items():
            counters.observe(stored, shard)

    return ReplayDataset(
        directory,
        table if mixture is None else mixture.tables,
        batch_size,
        beta=lambda: importance_sampling_exponent(config.table, learner_steps(), by_priority),
        transform=refusing_undecided(transform, sources, agent.window.history),
        join=joined_columns,
        decoding=Decoding(
            threads=threads,
            ready=decoded,
            encoded=decoded_later(agent, table.signature),
            history=agent.window.history,
        ),
        prefetch=in_flight,
        batches_per_sample=splits,
        keep=rows,
        priorities=replace(priorities, fencing_token=counters.fencing_token),
        on_sample=count,
        schedule=schedule,
        create=True,
    )
