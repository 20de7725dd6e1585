"""The pace of a run in lock-step: rounds say what is drawn when, and hold the learner back."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import torch

from tidemill.config.fixed import keep_fixed
from tidemill.config.lock_step import LockStep, lock_step_of
from tidemill.config.sections import LearnerConfig
from tidemill.errors import ConfigError
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.dataset import ReplayDataset
from tidemill.replay.sampling.schedule import Schedule, SeededDraw
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Agent
from tidemill.services.learner.data.dataset import open_dataset
from tidemill.services.learner.data.decoder import DatasetBatches
from tidemill.services.learner.data.table import batches_per_sample, table_config
from tidemill.services.learner.distributed.learner_group import LearnerGroup, RankInfo
from tidemill.services.learner.lock_step.priorities import HELD, RoundPriorities
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.status.metrics import collect
from tidemill.services.learner.training.pace import Feed, Learning
from tidemill.services.learner.training.trainer import TrainerOutputs
from tidemill.types import Signature

_NUMBER_BITS = 40  # of a draw's seed; those above are of the run's


def batches_per_draw(most: int, lock_step: LockStep) -> int:
    """Return how many batches a sample call draws: as many as divide the updates of a round, up to `most`."""
    return max(count for count in range(1, most + 1) if lock_step.updates % count == 0)


class DrawSchedule:
    """Schedule of a run's samples: when each is drawn, and with which seed."""

    def __init__(self, lock_step: LockStep, run_seed: int, batches: int) -> None:
        """Take the rounds, the run's seed, and how many batches a sample has, which divides those of a round."""
        self._lock_step, self._run_seed, self._batches = lock_step, run_seed, batches

    def draw(self, number: int) -> SeededDraw:
        """Return the draw of sample `number`, counted from 0."""
        seed = (self._run_seed % 2 ** (64 - _NUMBER_BITS)) << _NUMBER_BITS | number
        round_number = self._lock_step.round_of_update(number * self._batches)
        return SeededDraw(seed, round_number * self._lock_step.round_size)


class RoundPublisher:
    """Ends a round: a checkpoint first, then new priorities, then parameters.

    The order makes every part repeatable. Actors store the next round only after these parameters, so a learner that
    dies before the checkpoint repeats the round on a table that has not changed; one that dies later resumes behind it.
    """

    def __init__(
        self,
        outputs: TrainerOutputs,
        priorities: RoundPriorities | None,
        replay: ReplayClient,
    ) -> None:
        """Take the parts.

        Args:
            outputs: Of the only rank: what publishes parameters and what writes checkpoints.
            priorities: Of the rounds; None for a table without them.
            replay: Takes them.
        """
        assert outputs.publisher is not None
        assert outputs.checkpointer is not None
        self._publisher, self._checkpointer, self._priorities = outputs.publisher, outputs.checkpointer, priorities
        self._replay = replay

    @property
    def version(self) -> int:
        """Newest version that was acknowledged; 0 before the first."""
        return self._publisher.version

    def publish(self) -> None:
        """End the round.

        Raises:
            FatalError: The checkpoint could not be written.
            StalePublisher: A newer learner took over.
        """
        self._publisher.check()
        if self._priorities is not None:
            self._priorities.end_round()
        self._checkpointer.write_now()
        if self._priorities is not None:
            self._priorities.deliver(self._replay)
        self._publisher.publish()

    def renew(self) -> None:
        """Have the newest parameters published again if the server has lost them; the round stays."""
        self._publisher.renew()

    def check(self) -> None:
        """Raise the error that ended publishing."""
        self._publisher.check()


_MAX_IN_FLIGHT = 4  # samples that are drawn ahead of their use


class LockStepPace:
    """Draws by number, decodes in the training thread, and ends each round in order (`Pace`)."""

    checkpoint_every_s = 0.0  # each round ends with one
    syncs_checkpoints = False

    def __init__(self, config: LearnerConfig, counters: Counters, rank: RankInfo, stopped: Callable[[], bool]) -> None:
        """Take the settings, the learner's counters, which rank it is, and what says whether it is stopping.

        Raises:
            ConfigError: Several learners train together, or the settings give no whole rounds.
        """
        if rank.size > 1:
            raise ConfigError(f"{rank.size} learners train together, but run.deterministic allows one")
        self._config, self._counters = config, counters
        run, num_envs, actors = config.run, config.env.num_envs, config.actor.count
        self._lock_step = lock_step_of(run, config.table, config.learner, num_envs, actors)
        self.publish_every = self._lock_step.updates
        is_prioritized = config.table.sampler == "prioritized"
        self.kept_priorities = RoundPriorities(config.table.name, stopped) if is_prioritized else None

    def prepare(self) -> None:
        """Compare the settings with those at the run's start, and compute by the same kernels each time (`Pace`).

        cuBLAS reads its variable when it is first used.
        """
        keep_fixed(self._config, self._config.run.folder / "lock_step" / "learner.settings.json")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.set_deterministic_debug_mode("error")  # where there is no such kernel
        if getattr(self._config.agent, "compile", "none") not in ("auto", "none"):
            torch.use_deterministic_algorithms(True)  # this tells the compiler, too, which it imports in a second
        torch.backends.cudnn.benchmark = False

    def table(self, agent: Agent, signature: Signature) -> TableConfig:
        """Return a table whose rate limiter holds no one back: the rounds do (`Pace`)."""
        table = replace(self._config.table, min_size=1)
        learner = replace(self._config.learner, updates_per_env_step=0.0)
        return table_config(table, learner, agent, signature, self._config.agent.batch_size)

    def open(self, learning: Learning, outputs: TrainerOutputs, directory: ShardDirectory, stack: ExitStack) -> Feed:
        """Start to draw, from the batch of the next update on (`Pace`)."""
        priorities = self.kept_priorities
        if priorities is not None:
            priorities.fencing_token = self._counters.fencing_token  # before the first draw, which sends what was kept
        batches = batches_per_draw(self._most_batches(learning.table), self._lock_step)
        dataset = stack.enter_context(self._dataset(learning, batches, directory, outputs.group))
        collect(dataset, stack)
        replay = stack.enter_context(ReplayClient(self._config.cluster.replay[0]))
        if priorities is not None:
            priorities.collect(dataset.priorities)
        round_end = RoundPublisher(outputs, priorities, replay)
        sink = dataset.priorities if priorities is not None else None
        outputs = replace(outputs, priorities=sink, publisher=round_end)
        used = self._counters.learner_steps % batches  # of the first sample, by the run before a restart
        return Feed(DatasetBatches(dataset, skip=used), outputs, lambda: (), lambda: (), dataset.close)

    def _most_batches(self, table: TableConfig) -> int:
        config, items = self._config, self._config.agent.batch_size
        return batches_per_sample(config.table, config.learner, table.signature, items, table.max_item_steps)

    def _dataset(
        self, learning: Learning, batches: int, directory: ShardDirectory, group: LearnerGroup
    ) -> ReplayDataset:
        """Return batches that are drawn by number, and decoded when the training thread takes them."""
        config, counters, priorities = self._config, self._counters, self.kept_priorities
        schedule = Schedule(
            DrawSchedule(self._lock_step, config.run.seed, batches).draw,
            first=counters.learner_steps // batches,
            prepare=priorities.send_again if priorities is not None else lambda _: None,
        )
        return open_dataset(
            config,
            learning.agent,
            learning.table,
            learning.device,
            batch_size=config.agent.batch_size,
            splits=batches,
            threads=0,
            in_flight=_MAX_IN_FLIGHT,
            decoded=1,
            counters=counters,
            # those before the sample's first batch, in a learner that resumes in the middle of a sample too
            learner_steps=lambda: counters.learner_steps // batches * batches,
            directory=directory,
            rank=RankInfo(),
            group=group,
            schedule=schedule,
            priorities=HELD,
        )
