"""Samples as a server sends them, for tests that need no torch."""

from __future__ import annotations

import numpy as np

from tidemill.replay.batch import SampledBatch, StoredSteps


def sample(rewards: list[float], *, env_steps: int = 0, first_key: int = 1, items: int = 10) -> SampledBatch:
    """Return a sample without columns; its items' probabilities count up from 0.1."""
    count = len(rewards)
    return SampledBatch(
        keys=np.arange(first_key, first_key + count, dtype=np.uint64),
        probabilities=np.arange(1, count + 1) / 10.0,
        first_rows=np.arange(count, dtype=np.int64),
        lengths=np.full(count, 2, np.int64),
        payloads=(),
        step_counts=np.array([count + 1], np.int64),
        params_versions=np.array([4], np.uint64),
        blocks=(),
        table_items=items,
        total_weight=1.0,
        stored={"": StoredSteps(1, env_steps)},
    )
