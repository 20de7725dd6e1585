"""Recording of what one actor sends to the replay service, and the same as other actors would send it.

A replayed actor sends the messages again and again, at the same times, as the next steps of its streams.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from tidemill.replay.v1 import replay_pb2 as pb

APPEND = "/tidemill.replay.v1.ReplayService/Append"
"""The method that is recorded."""


class Message(NamedTuple):
    """One message of a replayed actor."""

    due_s: float
    """When it is sent, in seconds since the actor's beginning."""
    request: bytes
    chunks: int
    decisions: int


@dataclass(frozen=True)
class Recording:
    """The messages of one actor."""

    opening: pb.AppendRequest
    requests: list[pb.AppendRequest]
    """In order, from the first step of the streams."""
    at_s: list[float]
    """When each was sent, since the first."""

    @property
    def seconds(self) -> float:
        """Length of the recording, until the next message was due."""
        return self.at_s[-1] * len(self.at_s) / (len(self.at_s) - 1)

    @property
    def decisions(self) -> int:
        """Agent decisions in it."""
        return sum(map(_decisions, self.requests))

    @property
    def env_count(self) -> int:
        """Environments of the actor."""
        return int(self.opening.open.env_count)

    @property
    def steps_per_s(self) -> float:
        """Agent decisions per second."""
        return self.decisions / self.seconds

    def opening_of(self, actor_id: str) -> bytes:
        """Return the message that opens the streams of another actor."""
        request = pb.AppendRequest()
        request.CopyFrom(self.opening)
        request.open.actor_id = actor_id
        return request.SerializeToString()

    def messages(self) -> Iterator[Message]:
        """Yield what an actor sends, without end: each turn of the recording continues the streams of the last."""
        next_steps: Counter[int] = Counter()
        for turn in itertools.count():
            for at_s, request in zip(self.at_s, self.requests, strict=True):
                for chunk in request.data.chunks:
                    chunk.first_step = next_steps[chunk.env_index]
                    next_steps[chunk.env_index] += chunk.step_count
                due_s = turn * self.seconds + at_s
                yield Message(due_s, request.SerializeToString(), len(request.data.chunks), _decisions(request))

    def save(self, path: Path) -> None:
        """Write it: a line for each message, with its time and its bytes in hexadecimal."""
        pairs = zip([0.0, *self.at_s], [self.opening, *self.requests], strict=True)
        lines = (f"{at_s} {request.SerializeToString().hex()}\n" for at_s, request in pairs)
        path.write_text("".join(lines), encoding="ascii")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        pairs = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
        requests = [pb.AppendRequest.FromString(bytes.fromhex(request)) for _, request in pairs]
        return cls(requests[0], requests[1:], [float(at_s) for at_s, _ in pairs[1:]])


def _decisions(request: pb.AppendRequest) -> int:
    return sum(chunk.decision_count for chunk in request.data.chunks)
