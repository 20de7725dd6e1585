"""Plan of a batch: the number of items to draw from each server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.replay.v1 import replay_pb2 as pb


@dataclass(frozen=True, slots=True)
class Draw:
    """What one server is asked for.

    Attributes:
        shard: Name of the server.
        items: Items it is to draw; 0 asks only how its table is.
        counted: Samples its rate limiter is to count. None: the limiter counts all of them, and holds them back.
        seed: Of the draw, in lock-step.
        at_step_count: In lock-step, the steps that the streams of all actors have together when it is drawn.
    """

    shard: str
    items: int
    counted: int | None
    seed: int | None = None
    at_step_count: int | None = None

    def add_to(self, request: pb.SampleRequest) -> None:
        """Ask for it with a message."""
        if self.counted is None:
            request.credit += 1
        else:
            request.draws.add(items=self.items, counted=self.counted, seed=self.seed, at_step_count=self.at_step_count)


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch.

    Attributes:
        weights: Total weight of each server by which the batch is split, as it was known then.
        draws: What is asked for; may name a server that has nothing to draw, to have its limiter count.
    """

    weights: Mapping[str, float]
    draws: tuple[Draw, ...]

    def fraction(self, shard: str) -> float:
        """Return the probability with which an item of the batch comes from a server."""
        return self.weights[shard] / sum(self.weights.values())
