"""Puts the parts of a batch that came from several shards together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.replay.batch import Blocks, SampledBatch, StoredSteps


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one shard gave for a batch.

    Attributes:
        source: Number of the shard, which goes with every key.
        share: Probability with which an item of the batch was to come from this shard; 1 for a deterministic sampler.
        sample: Its items.
    """

    source: int
    share: float
    sample: SampledBatch


def merge(
    parts: Sequence[Part], table_items: int, priority_mass: float, rotation: int, stored: Mapping[str, StoredSteps]
) -> SampledBatch:
    """Return one batch with the items and chunks of all parts, in their order, rotated.

    An item's probability is that of its shard times that within the shard: exact for the split that was used, however
    old the masses were that it went by.

    Args:
        parts: At least one, with the same columns.
        table_items: Items of all shards together.
        priority_mass: Mass of all shards together.
        rotation: By how many places the items move on. A random one gives each place of the batch the same chances.
        stored: What each shard ever stored, by name.
    """
    samples = [part.sample for part in parts]
    rows = np.cumsum([0, *(int(sample.step_counts.sum()) for sample in samples)])
    keys = [
        np.stack((part.sample.keys, np.full(len(part.sample.keys), part.source, dtype=np.uint64)), axis=1)
        for part in parts
    ]
    starts = [sample.first_rows + start for sample, start in zip(samples, rows[:-1], strict=True)]
    columns = zip(*(sample.blocks for sample in samples), strict=True)
    return SampledBatch(
        keys=np.roll(np.concatenate(keys), rotation, axis=0),
        probabilities=np.roll(np.concatenate([part.sample.probabilities * part.share for part in parts]), rotation),
        first_rows=np.roll(np.concatenate(starts), rotation),
        lengths=np.roll(np.concatenate([sample.lengths for sample in samples]), rotation),
        payloads=_rotated(_payloads(samples), rotation),
        step_counts=np.concatenate([sample.step_counts for sample in samples]),
        params_versions=np.concatenate([sample.params_versions for sample in samples]),
        blocks=tuple(_joined(column) for column in columns),
        table_items=table_items,
        priority_mass=priority_mass,
        stored=stored,
    )


def _joined(column: Sequence[Blocks]) -> Blocks:
    return Blocks(b"".join(blocks.data for blocks in column), np.concatenate([blocks.sizes for blocks in column]))


def _payloads(samples: Sequence[SampledBatch]) -> tuple[bytes, ...]:
    if not any(sample.payloads for sample in samples):
        return ()
    return tuple(p for sample in samples for p in (sample.payloads or (b"",) * len(sample.keys)))


def _rotated(payloads: tuple[bytes, ...], rotation: int) -> tuple[bytes, ...]:
    if not payloads:
        return ()
    shift = rotation % len(payloads)
    return payloads[len(payloads) - shift :] + payloads[: len(payloads) - shift]
