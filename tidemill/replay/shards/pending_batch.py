"""A batch that is being put together from what several shards give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemill.replay.sampling.batch import Blocks, SampledBatch, StoredSteps
from tidemill.replay.shards.table import Plan, ShardRequest

_Kind = TypeVar("_Kind", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one shard gave for a batch.

    Attributes:
        incarnation: Number of the shard, which goes with every key.
        fraction: Probability with which an item of the batch was to come from this shard; 1 if not at random.
        sample: Its items.
    """

    incarnation: int
    fraction: float
    sample: SampledBatch


def merge(
    parts: Sequence[Part], table_items: int, total_weight: float, rotation: int, stored: Mapping[str, StoredSteps]
) -> SampledBatch:
    """Return one batch with the items and chunks of all parts, in their order, rotated.

    An item's probability is that of its shard times that within the shard: exact for the split that was used, however
    old the weights were that it went by.

    Args:
        parts: At least one, with the same columns.
        table_items: Items of all shards together.
        total_weight: Total weight of all shards together.
        rotation: By how many places the items move on. A random one gives each place of the batch the same chances.
        stored: What each shard ever stored, by name.
    """
    samples = [part.sample for part in parts]
    rows = np.cumsum([0, *(int(sample.step_counts.sum()) for sample in samples)])
    keys = [
        np.stack((part.sample.keys, np.full(len(part.sample.keys), part.incarnation, dtype=np.uint64)), axis=1)
        for part in parts
    ]
    starts = [sample.first_rows + start for sample, start in zip(samples, rows[:-1], strict=True)]
    columns = zip(*(sample.blocks for sample in samples), strict=True)
    return SampledBatch(
        keys=np.roll(np.concatenate(keys), rotation, axis=0),
        probabilities=np.roll(np.concatenate([part.sample.probabilities * part.fraction for part in parts]), rotation),
        first_rows=np.roll(np.concatenate(starts), rotation),
        lengths=np.roll(np.concatenate([sample.lengths for sample in samples]), rotation),
        payloads=_rotated(_payloads(samples), rotation),
        step_counts=np.concatenate([sample.step_counts for sample in samples]),
        params_versions=np.concatenate([sample.params_versions for sample in samples]),
        blocks=tuple(_joined(column) for column in columns),
        table_items=table_items,
        total_weight=total_weight,
        stored=stored,
        slots=_joined_arrays([sample.slots for sample in samples]),
        writes=_joined_arrays([sample.writes for sample in samples]),
        ages=_rolled(_joined_arrays([sample.ages for sample in samples]), rotation),
        times_sampled=_rolled(_joined_arrays([sample.times_sampled for sample in samples]), rotation),
        priorities=_rolled(_joined_arrays([sample.priorities for sample in samples]), rotation),
    )


def _joined_arrays(arrays: Sequence[NDArray[_Kind] | None]) -> NDArray[_Kind] | None:
    given = [array for array in arrays if array is not None]
    return np.concatenate(given) if given and len(given) == len(arrays) else None


def _rolled(values: NDArray[_Kind] | None, rotation: int) -> NDArray[_Kind] | None:
    return np.roll(values, rotation) if values is not None else None


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


@dataclass(slots=True, eq=False)
class PendingBatch:
    """One batch, from its plan to its last answer.

    Attributes:
        plan: The split in force.
        waiting: Draws that are not answered.
        answers: Source number, shard and answer of those that are.
    """

    plan: Plan
    waiting: list[ShardRequest]
    answers: list[tuple[int, str, SampledBatch]] = field(default_factory=list)

    @classmethod
    def of(cls, plan: Plan) -> PendingBatch:
        """Begin a batch."""
        return cls(plan, list(plan.draws))

    @property
    def is_complete(self) -> bool:
        """Whether every draw is answered."""
        return not self.waiting

    def answer(self, draw: ShardRequest, incarnation: int, answer: SampledBatch) -> None:
        """Take the answer to a draw; one without items was only to be counted."""
        self.waiting.remove(draw)
        if draw.items:
            self.answers.append((incarnation, draw.shard, answer))

    def replace(self, lost: list[ShardRequest], plan: Plan) -> None:
        """Put other draws in the place of lost ones."""
        self.waiting = [draw for draw in self.waiting if draw not in lost] + list(plan.draws)
        # a shard that gave a part before it was lost keeps its weight: its own items were drawn with it in the split
        given = {shard for _, shard, _ in self.answers}
        weights = {
            shard: total_weight
            for shard, total_weight in self.plan.weights.items()
            if shard in given or shard in plan.weights
        }
        self.plan = Plan(weights, plan.draws)

    def batch(
        self,
        *,
        table_items: int,
        total_weight: float,
        rotation: int,
        random: bool,
        stored: Mapping[str, StoredSteps],
    ) -> SampledBatch:
        """Return the batch, see `merge`; `random` says whether the sampler is one that draws at random."""
        parts = [
            Part(incarnation, self.plan.fraction(shard) if random else 1.0, answer)
            for incarnation, shard, answer in self.answers
        ]
        return merge(parts, table_items, total_weight, rotation, stored)
