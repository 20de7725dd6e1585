"""The learner's side of a run in lock-step: its settings, when it draws what, and the parts that differ."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import torch

from tidemill.config.lock_step import LockStep, lock_step_of
from tidemill.config.sections import LearnerConfig
from tidemill.config.services import LearnerSettings
from tidemill.config.table import TableSettings
from tidemill.errors import ConfigError
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.seeded_stream import SeededDraw, SeededSampleStream
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Agent
from tidemill.services.learner.counters import Counters
from tidemill.services.learner.data.decoder import make_decoder
from tidemill.services.learner.distributed.learner_group import RankInfo
from tidemill.services.learner.lock_step.batches import RoundBatches
from tidemill.services.learner.lock_step.priorities import RoundPriorities

MAX_IN_FLIGHT = 4
"""Samples that are drawn ahead of their use."""

_NUMBER_BITS = 40  # of a draw's seed; those above are of the run's


def lock_step_for(config: LearnerConfig, rank: RankInfo) -> LockStep | None:
    """Return the rounds of a run; None if it is not in lock-step.

    Raises:
        ConfigError: Several learners train together.
    """
    run = config.run
    if not run.deterministic:
        return None
    if rank.size > 1:
        raise ConfigError(f"{rank.size} learners train together, but run.deterministic allows one")
    return lock_step_of(run, config.table, config.learner, config.env.num_envs, config.actor.count)


def unpaced(config: LearnerConfig) -> tuple[TableSettings, LearnerSettings]:
    """Return the settings of a table whose rate limiter holds no one back: the rounds do."""
    return replace(config.table, min_size=1), replace(config.learner, updates_per_env_step=0.0)


def compute_deterministically() -> None:
    """Have torch use kernels that give equal results each time, or raise where there is none.

    cuBLAS reads its variable when it is first used, so this comes before anything is computed.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def batches_per_draw(most: int, lock_step: LockStep) -> int:
    """Return how many batches a sample call draws: as many as divide the gradient steps of a round, up to `most`."""
    return max(count for count in range(1, most + 1) if lock_step.updates % count == 0)


class DrawSchedule:
    """When each sample of a run is drawn, and by which seed."""

    def __init__(self, lock_step: LockStep, run_seed: int, batches: int) -> None:
        """Take the rounds, the run's seed, and how many batches a sample has, which divides those of a round."""
        self._lock_step, self._run_seed, self._batches = lock_step, run_seed, batches

    def draw(self, number: int) -> SeededDraw:
        """Return the draw of sample `number`, counted from 0."""
        seed = (self._run_seed % 2 ** (64 - _NUMBER_BITS)) << _NUMBER_BITS | number
        round_number = self._lock_step.round_of_update(number * self._batches)
        return SeededDraw(seed, round_number * self._lock_step.round_size)


def open_round_batches(
    config: LearnerConfig,
    agent: Agent,
    table: TableConfig,
    device: torch.device,
    counters: Counters,
    priorities: RoundPriorities | None,
    batches: int,
    mirror: TableMirror | None,
) -> RoundBatches:
    """Start to draw, from the batch of the next gradient step on.

    Args:
        config: The learner's settings.
        agent: Decodes.
        table: The table, which exists.
        device: Where batches go.
        counters: Of the learner.
        priorities: What a server may have lost when it is connected to; None for a table without priorities.
        batches: Batches of one sample.
        mirror: Keeps the table's rows; None for none.
    """
    lock_step = lock_step_for(config, RankInfo())
    assert lock_step is not None, "the run is not in lock-step"
    stream = SeededSampleStream(
        config.cluster.replay[0],
        table,
        config.agent.batch_size * batches,
        DrawSchedule(lock_step, config.run.seed, batches).draw,
        first=counters.learner_steps // batches,
        max_in_flight_batches=MAX_IN_FLIGHT,
        mirror=mirror,
        prepare=priorities.send_again if priorities is not None else lambda _: None,
    )
    decoders, delete = Counters(), stream.delete_items
    decoder = make_decoder(config, agent, table, device, decoders, delete, splits=batches, mirror=mirror)
    return RoundBatches(stream, decoder.decode, counters, decoders, batches=batches, clock=time.monotonic)
