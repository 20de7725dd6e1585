"""Stand-ins for the parts around a learner, without a network and with a fake clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.config.sections import LearnerConfig
from tidemill.replay.sampling.priorities import PrioritySender
from tidemill.replay.sampling.replay_batch import ReplayBatch
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Update
from tidemill.rl.process_group import ProcessGroup
from tidemill.services.learner.data import dataset
from tidemill.services.learner.data.decoder import DEVICE_BATCH, WEIGHT, Batch
from tidemill.services.learner.data.device import DeviceBatch
from tidemill.types import WindowSpec


class FakeAgent:
    """Its one weight grows by 1 an update; its priorities are the weights it was given."""

    window = WindowSpec(history=0, steps=1)
    recurrent_state_size: int = 0

    def __init__(self, size: int = 2) -> None:
        self.weight = torch.zeros(size)
        self.batches: list[Mapping[str, Tensor]] = []

    def decode(self, columns: Mapping[str, NDArray[Any]], index: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the reward of each item's first step."""
        return {"reward": columns["reward"][index[:, 0]]}

    def set_process_group(self, group: ProcessGroup) -> None:
        """Train alone anyway."""

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Count the update."""
        self.batches.append(batch)
        self.weight += 1
        return Update(weight, {"loss": self.weight[0].clone()})

    def policy_state(self) -> dict[str, Tensor]:
        """Return a copy of the weight."""
        return {"weight": self.weight.clone()}

    def state_dict(self) -> dict[str, Any]:
        """Return the weight itself."""
        return {"weight": self.weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a weight."""
        self.weight.copy_(state["weight"])


class FakeSource:
    """Hands out the batches it was given, then none."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = deque(batches)
        self.empty_takes = 0

    def take(self, timeout_s: float) -> Batch | None:
        """Return the next batch."""
        if self.batches:
            return self.batches.popleft()
        self.empty_takes += timeout_s > 0
        return None


class FakePriorities(PrioritySender):
    """Remembers what it was given."""

    def __init__(self) -> None:
        super().__init__([])
        self.keys: list[int] = []
        self.flushes = 0

    def send(self, keys: NDArray[np.uint64], priorities: object, table: int | None = None) -> None:
        """Remember the keys."""
        self.keys += keys.tolist()

    def flush(self) -> None:
        """Count."""
        self.flushes += 1


class FakePublisher:
    """Acknowledges at once; remembers the agent's weight at each publish."""

    def __init__(self, agent: FakeAgent) -> None:
        self._agent = agent
        self.published: list[float] = []
        self.renewals = 0
        self.error: Exception | None = None

    @property
    def version(self) -> int:
        """Return the number of publishes."""
        return len(self.published)

    def publish(self) -> None:
        """Remember."""
        self.check()
        self.published.append(float(self._agent.weight[0]))

    def renew(self) -> None:
        """Count."""
        self.renewals += 1

    def check(self) -> None:
        """Raise what the test set."""
        if self.error is not None:
            raise self.error


def batch(
    *keys: int,
    columns: Mapping[str, Tensor] | None = None,
    weight: Tensor | None = None,
    largest_weight: float = 1.0,
    on_device: DeviceBatch | None = None,
) -> Batch:
    """Return a batch of items with these keys, of a table of 10 items; without columns, of weight 1 unless given."""
    count = len(keys)
    versions = np.zeros(count, np.uint64)
    return Batch(
        ReplayBatch(
            keys=np.array(keys, np.uint64),
            probabilities=np.full(count, 1 / 10),
            lengths=np.ones(count, np.int64),
            payloads=(),
            columns={
                **(columns or {}),
                WEIGHT: torch.ones(count) if weight is None else weight,
                DEVICE_BATCH: on_device or DeviceBatch({}),
            },
            sizes={},
            weights=np.ones(count, np.float32),
            params_versions=versions,
            tables=np.zeros(count, np.int64),
            table_items=np.full(count, 10),
            first_versions=versions,
            steps=1,
            largest_weight=largest_weight,
        )
    )


def given_to_dataset(
    monkeypatch: pytest.MonkeyPatch,
    config: LearnerConfig,
    agent: Any,  # noqa: ANN401 - what it asks of one
    table: TableConfig,
    learner_steps: int = 0,
    **more: Any,  # noqa: ANN401 - see `open_dataset`
) -> dict[str, Any]:
    """Return the arguments of the `ReplayDataset` that a learner opens after a number of updates."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(dataset, "ReplayDataset", lambda *_, **settings: given.update(settings))
    unused: Any = SimpleNamespace(fencing_token=0)
    dataset.open_dataset(
        config,
        agent,
        table,
        torch.device("cpu"),
        batch_size=4,
        splits=1,
        threads=0,
        in_flight=1,
        decoded=1,
        counters=unused,
        learner_steps=lambda: learner_steps,
        directory=unused,
        rank=unused,
        group=unused,
        **more,
    )
    return given
