"""A table of demonstrations, for learners that mix it into their batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.feeder import SPEC
from tidemill.replay import ItemWindow, ReplayWriter, SelectorConfig, SelectorKind, TableConfig
from tidemill.types import signature_of


def demonstrations(**settings: Any) -> TableConfig:  # noqa: ANN401 - of a table
    """Return the configuration of the table `demos`, which fits the run's own unless `settings` say otherwise."""
    defaults: dict[str, Any] = {
        "signature": signature_of(SPEC),
        "sampler": SelectorConfig(SelectorKind.PRIORITIZED),
        "max_items": 1000,
        "max_item_steps": 2,
    }
    return TableConfig("demos", **(defaults | settings))


def write_demonstrations(address: str, table: TableConfig, *, counts: bool = False) -> None:
    """Write an episode of 19 decisions that is truncated, and its last observation, with an action that nobody took."""
    rng = np.random.default_rng(0)
    windows = ItemWindow(table.max_item_steps)
    with ReplayWriter(address, table, windows=windows, counts_decisions=counts) as writer:
        for number in range(20):
            row = {
                "observation": rng.standard_normal(4),
                "action": int(rng.integers(2)) if number < 19 else -1,
                "reward": 1.0,
                "terminated": False,
                "truncated": number == 18,
                "is_first": number == 0,
            }
            writer.append({name: row.get(name, 0) for name in (column.name for column in table.signature)})
