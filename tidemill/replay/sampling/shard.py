"""One shard of a table as a sampler sees it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tidemill.replay.batch import StoredSteps
from tidemill.replay.sampling.pending_batch import PendingBatch
from tidemill.replay.sampling.plan import Draw
from tidemill.replay.sampling.sample_call import SampleCall
from tidemill.replay.v1 import replay_pb2 as pb


@dataclass(slots=True, eq=False)
class Shard:
    """State that a sampler keeps of a shard.

    Attributes:
        address: Its address.
        call: What it is asked by.
        incarnation: Number that goes with its keys; another one when its table was lost.
        connected: Whether a call is open.
        was_connected: Whether one ever was.
        live: Whether it has answered in this call.
        asked: What is not answered, and for which batch.
        heard_s: When it answered last, or was asked the first thing that is not answered.
        newest: Number of the batch that it gave last in this call; 0 before the first.
        samples: Items it has given.
        stored: Decisions stored for its table since that was created or reset; None before its first answer.
        mirror_part: Which part of the sampler's mirror is for its chunks, from 0.
        request: What is to be sent next; None if nothing is.
    """

    address: str
    call: SampleCall
    incarnation: int
    connected: bool = False
    was_connected: bool = False
    live: bool = False
    asked: deque[tuple[Draw, PendingBatch | None]] = field(default_factory=deque)
    heard_s: float = 0.0
    newest: int = 0
    samples: int = 0
    stored: StoredSteps | None = None
    mirror_part: int = 0
    request: pb.SampleRequest | None = None

    @property
    def next_request(self) -> pb.SampleRequest:
        """What is to be sent next, to add to."""
        if self.request is None:
            self.request = pb.SampleRequest()
        return self.request

    def ask_smaller(self) -> None:
        """Add that the next batch may be smaller."""
        self.next_request.smaller = True
        self.next_request.smaller_after = self.newest

    def send(self) -> None:
        """Send what is to be sent, if there is something."""
        request, self.request = self.request, None
        if request is not None:
            self.call.send(request)

    def end_call(self) -> list[tuple[PendingBatch, list[Draw]]]:
        """Forget what was asked; return the draws that batches wait for and will not get."""
        self.connected = self.live = False
        self.request, self.newest = None, 0
        asked, self.asked = self.asked, deque()
        lost: dict[int, tuple[PendingBatch, list[Draw]]] = {}
        for draw, pending in asked:
            if pending is not None:
                lost.setdefault(id(pending), (pending, []))[1].append(draw)
        return list(lost.values())
