"""Steps that say which they are, and tables of them, for programs with a replay server and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.waiting import wait_until
from tidemill.replay import ReplayBatch, ReplayDataset, SelectorConfig, SelectorKind, TableConfig, signature_like

STEP: dict[str, Any] = {"number": 0, "image": np.zeros((4, 4, 32), np.uint8), "inner": (0.5, [1, 2])}
SIGNATURE = signature_like(STEP)


def steps_table(name: str = "t", **settings: Any) -> TableConfig:  # noqa: ANN401 - settings of a table
    """Return a queue of the steps' columns that gives each item once, with other settings if given."""
    defaults: dict[str, Any] = {"sampler": SelectorConfig(SelectorKind.FIFO), "max_items": 1000, "max_item_steps": 4}
    return TableConfig(name, SIGNATURE, **(defaults | {"max_times_sampled": 1} | settings))


def numbered_step(number: int) -> dict[str, Any]:
    """Return the step of a number, which its picture shows as well, modulo 256."""
    return STEP | {"number": number, "image": np.full((4, 4, 32), number % 256, np.uint8)}


def awaited_numbers(dataset: ReplayDataset) -> list[int]:
    """Return the last numbers of a batch that must come, by itself later than the dataset's timeout."""
    batch: ReplayBatch | None = None

    def has_come() -> bool:
        nonlocal batch
        batch = dataset.take(0.0)
        return batch is not None

    wait_until(has_come, "a batch")
    assert batch is not None
    return [int(number) for number in batch["number"][:, -1]]
