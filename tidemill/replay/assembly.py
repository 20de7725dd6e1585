"""A batch that is being put together from what several shards give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.replay import wire
from tidemill.replay.batch import SampledBatch, StoredSteps
from tidemill.replay.merge import Part, merge
from tidemill.replay.union import Draw, Plan
from tidemill.replay.v1 import replay_pb2 as pb


@dataclass(slots=True, eq=False)
class Assembly:
    """One batch, from its plan to its last answer.

    Attributes:
        plan: The split in force.
        waiting: Draws that are not answered.
        answers: Source number, shard and answer of those that are.
    """

    plan: Plan
    waiting: list[Draw]
    answers: list[tuple[int, str, pb.SampleResponse]] = field(default_factory=list)

    @classmethod
    def of(cls, plan: Plan) -> Assembly:
        """Begin a batch."""
        return cls(plan, list(plan.draws))

    @property
    def is_complete(self) -> bool:
        """Whether every draw is answered."""
        return not self.waiting

    def answer(self, draw: Draw, source: int, answer: pb.SampleResponse) -> None:
        """Take the answer to a draw; one without items was only to be counted."""
        self.waiting.remove(draw)
        if draw.items:
            self.answers.append((source, draw.shard, answer))

    def replace(self, lost: list[Draw], plan: Plan) -> None:
        """Put other draws in the place of lost ones."""
        self.waiting = [draw for draw in self.waiting if draw not in lost] + list(plan.draws)
        # a shard that gave a part before it was lost keeps its mass: its own items were drawn with it in the split
        given = {shard for _, shard, _ in self.answers}
        masses = {shard: mass for shard, mass in self.plan.masses.items() if shard in given or shard in plan.masses}
        self.plan = Plan(masses, plan.draws)

    def batch(
        self,
        *,
        table_items: int,
        priority_mass: float,
        rotation: int,
        random: bool,
        stored: Mapping[str, StoredSteps],
    ) -> SampledBatch:
        """Return the batch, see `merge`; `random` says whether the sampler is one that draws at random."""
        parts = [
            Part(source, self.plan.share(shard) if random else 1.0, wire.unpack_sample(answer))
            for source, shard, answer in self.answers
        ]
        return merge(parts, table_items, priority_mass, rotation, stored)
