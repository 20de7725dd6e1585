"""A batch that is being put together from what one or several servers give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tidemill.replay.batch import SampledBatch, StoredSteps
from tidemill.replay.sampling.plan import Draw, Plan


@dataclass(slots=True, eq=False)
class PendingBatch:
    """One batch, from its plan to its last answer.

    Attributes:
        plan: The split in force.
        waiting: Draws that are not answered.
        answers: Source number, shard and answer of those that are.
    """

    plan: Plan
    waiting: list[Draw]
    answers: list[tuple[int, str, SampledBatch]] = field(default_factory=list)

    def answer(self, draw: Draw, incarnation: int, answer: SampledBatch) -> None:
        """Take the answer to a draw; one without items was only to be counted."""
        self.waiting.remove(draw)
        if draw.items:
            self.answers.append((incarnation, draw.shard, answer))

    def replace(self, lost: list[Draw], plan: Plan) -> None:
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

    def only(self) -> SampledBatch:
        """Return the batch of one server that has the whole table, as it came."""
        (_, _, sample), *_ = self.answers
        return sample

    def batch(
        self,
        *,
        table_items: int,
        total_weight: float,
        rotation: int,
        random: bool,
        stored: Mapping[str, StoredSteps],
    ) -> SampledBatch:
        """Return one batch with the items and chunks of all answers, in their order, rotated.

        An item's probability is that of its shard times that within the shard: exact for the split that was used,
        however old the weights were that it went by.

        Args:
            table_items: Items of all shards together.
            total_weight: Total weight of all shards together.
            rotation: By how many places the items move on. A random one gives each place of the batch the same chances.
            random: Whether the sampler draws at random; if not, every probability is as its shard gave it.
            stored: Decisions stored for the table of each shard since it was created or reset, by name.
        """
        parts = []
        for incarnation, shard, sample in self.answers:
            numbers = np.full(len(sample.keys), incarnation, dtype=np.uint64)
            fraction = self.plan.fraction(shard) if random else 1.0
            parts.append(
                replace(
                    sample,
                    keys=np.stack((sample.keys, numbers), axis=1),
                    probabilities=sample.probabilities * fraction,
                )
            )
        return replace(
            SampledBatch.joined(parts).roll(rotation),
            table_items=table_items,
            total_weight=total_weight,
            stored=stored,
            limiter_diff=0.0,
            epoch=None,
            number=0,
            received_at=min(part.received_at for part in parts),
        )
