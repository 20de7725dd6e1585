"""Plan of a batch: the number of items to draw from each server, and the interface of its planners."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

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


class Planner(Protocol):
    """Decides what of a batch comes from which server, and when. Decisions only, without I/O."""

    def join(self, shard: str, /) -> None:
        """A server is live."""

    def leave(self, shard: str, /) -> None:
        """A server is no longer live: what it was asked for is forgotten."""

    def asked(self, draw: Draw, /) -> None:
        """A live server was asked for something."""

    def answered(self, draw: Draw, items: int, total_weight: float, diff: float, /) -> None:
        """A live server answered, and said how its table is now."""

    def plan(self, batch_size: int, /) -> Plan | None:
        """Return how the next batch is drawn; None while it has to wait."""

    def replan(self, plan: Plan, lost: Collection[Draw], /) -> Plan | None:
        """Return how the lost draws of a batch are made up for by other servers; None if by none."""
