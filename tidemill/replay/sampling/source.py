"""Sources of a dataset's samples: a sampler, or that of another rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Keys
from tidemill.replay.batch import SampledBatch
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.shard_report import ShardReport
from tidemill.replay.table_config import TableConfig


class EndOfBatches(StopIteration):
    """A separate class, since Python 3.11 waits for ever for a future that StopIteration itself was to end.

    `await asyncio.to_thread(next, dataset)` did so once the dataset was closed; with this it returns None.
    """

    def __init__(self, message: str) -> None:
        """Set the message alone: the value of a StopIteration would be the result of such an `await`."""
        super().__init__(message)
        self.value = None


class SampleSource(Protocol):
    """Interface of a `SampleStream`, or its substitute, that a dataset needs. Any thread may call it."""

    def take(self, timeout_s: float, /) -> SampledBatch | None:
        """Return the next sample, or None if there is none in time."""

    def again(self) -> None:
        """Have the sample that was taken last drawn once more, where a schedule says which one it is."""

    def ask_smaller(self) -> None:
        """Ask that the next sample have what the table can give now."""

    def update_priorities(
        self,
        keys: Keys,
        priorities: NDArray[np.float64],
        fencing_token: int = 0,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Set new priorities of sampled items."""

    def delete_items(self, keys: Keys) -> None:
        """Remove sampled items from the table."""

    def shards(self) -> tuple[ShardReport, ...]:
        """Return the status of each shard; empty for a single server."""

    def close(self) -> None:
        """End it. May be called twice."""

    @property
    def reconnects(self) -> int:
        """How often its sample streams were lost and opened again."""

    @property
    def priorities_dropped(self) -> int:
        """Priorities that were not delivered."""

    @property
    def unknown_keys(self) -> int:
        """Priorities delivered after their item had left the table."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenedSource:
    """An open source of a table's samples.

    Attributes:
        source: Gives them, and takes priorities and corrupt items.
        mirror: Keeps their rows; None if they bring them.
    """

    source: SampleSource
    mirror: TableMirror | None = None


@dataclass(frozen=True, slots=True)
class SampleShape:
    """Samples of one table that a process needs.

    Attributes:
        batch_size: Items of one sample.
        in_flight: Samples that may be under way or ready; 0 draws one when it is taken.
        hold: Samples that may be drawn before one is read.
        shards: Over how many shards the table is spread; 0 for a single server.
        parts: Servers for whose steps a mirror has room.
    """

    batch_size: int
    in_flight: int
    hold: int
    shards: int = 0
    parts: int = 1


Connect = Callable[[TableMirror | None, int], SampleSource]
"""Starts to sample a table: given what keeps its rows, and how many samples may be under way or ready."""


class Keep(Protocol):
    """Decides where the rows of a table are kept, and who samples it."""

    def open(self, table: TableConfig, shape: SampleShape, connect: Connect, stack: ExitStack) -> OpenedSource:
        """Start to sample.

        Args:
            table: The table.
            shape: What is sampled.
            connect: Starts to sample; not called where another process does so.
            stack: Closes what is opened.
        """
