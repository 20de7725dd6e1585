"""What differs between a learner that trains as its data comes and one in lock-step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import torch

from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.shards.shard import ShardReport
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Agent
from tidemill.services.learner.checkpoint.resume import HasState
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
        """Gradient steps between two published versions."""

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
            ConfigError: The table cannot hold the ratio of gradient steps to agent decisions.
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
