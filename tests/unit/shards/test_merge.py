"""Batches of several shards put together are read as one batch is."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.replay_streams import (
    SIGNATURE,
    append,
    make_chunk,
    make_config,
    make_items,
    make_replay,
    sample_from,
)
from tests.support.replay_streams import open_streams as opened
from tidemill.replay.batch import SampledBatch, StoredSteps
from tidemill.replay.codec import decode
from tidemill.replay.sampling.pending_batch import PendingBatch
from tidemill.replay.sampling.plan import Plan

T = TypeVar("T")


def sample_of(stream: int, items: int, payloads: bool = False) -> SampledBatch:
    """Return so many two-step items of one stream, drawn from a separate server's state."""
    replay = make_replay(make_config(payload_bytes=2 if payloads else 0))
    appending = opened(replay)
    given_payloads = [bytes([stream, i]) for i in range(7)] if payloads else []
    chunks = [make_chunk(stream, 0, 0, 4), make_chunk(stream, 0, 4, 4)]
    places = [(0, 1, 2), (0, 2, 2), (0, 3, 2), (1, 0, 2), (1, 1, 2), (1, 2, 2), (1, 3, 2)]
    append(replay, appending, chunks, [make_items(0, places, payloads=given_payloads)])
    drawn = sample_from(replay.find("t"), items)
    return replace(drawn, stored={"": StoredSteps(1, 8)})


def merge(samples: list[SampledBatch], weights: list[float], rotation: int) -> SampledBatch:
    """Return the batch that the samples of shards 10, 11, ... of these weights make up."""
    plan = Plan({str(i): weight for i, weight in enumerate(weights)}, ())
    pending = PendingBatch(plan, [], [(10 + i, str(i), sample) for i, sample in enumerate(samples)])
    stored = {"a": StoredSteps(1, 3), "b": StoredSteps(2, 4)}
    return pending.batch(table_items=70, total_weight=7.0, rotation=rotation, random=True, stored=stored)


def steps(batch: SampledBatch) -> list[tuple[int, int, int]]:
    """Return (stream, first step, second step) of each item."""
    rows = decode(SIGNATURE, batch, 2)
    stream, step = rows.columns["stream"][:, 0], rows.columns["step"]
    return [(int(stream[a]), int(step[a]), int(step[b])) for a, b in rows.index]


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 30))
def test_items_of_a_merged_batch_are_those_of_its_parts(sizes: list[int], rotation: int) -> None:
    """Every item keeps its steps, its key beside its shard's number, and its probability times the fraction."""
    samples = [sample_of(stream, size) for stream, size in enumerate(sizes)]
    weights = [i + 1.0 for i in range(len(samples))]
    merged = merge(samples, weights, rotation)
    assert steps(merged) == _rolled([item for sample in samples for item in steps(sample)], rotation)
    keys = [[key, 10 + i] for i, sample in enumerate(samples) for key in sample.keys.tolist()]
    assert merged.keys.tolist() == _rolled(keys, rotation)
    fractions = [weight / sum(weights) for weight in weights]
    probabilities = [p * f for f, sample in zip(fractions, samples, strict=True) for p in sample.probabilities.tolist()]
    np.testing.assert_allclose(merged.probabilities, _rolled(probabilities, rotation))
    assert (merged.table_items, merged.total_weight, merged.env_steps) == (70, 7.0, 7)


def test_payloads_stay_with_their_items_when_only_some_parts_have_them() -> None:
    """An item of a part without payloads has an empty one."""
    with_payloads, without = sample_of(3, 4, payloads=True), sample_of(4, 2)
    merged = merge([with_payloads, without], [1.0, 1.0], 1)
    assert merged.payloads == (b"", *with_payloads.payloads, b"")
    assert [stream for stream, _, _ in steps(merged)] == [4, 3, 3, 3, 3, 4]


def _rolled(values: list[T], rotation: int) -> list[T]:
    shift = rotation % len(values)
    return values[len(values) - shift :] + values[: len(values) - shift]
