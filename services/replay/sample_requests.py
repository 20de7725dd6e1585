"""Unpacks what the messages of a Sample call grant, into its queue."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidemill.errors import InvalidArgument, TidemillError
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.services.replay.sample_queue import SampleQueue


def grant(queue: SampleQueue, request: pb.SampleRequest) -> None:
    """Add the batches that one message is ready to take.

    Raises:
        InvalidArgument: A batch is too large, or too many wait.
    """
    queue.grant(request.credit)
    for draw in request.draws:
        queue.draw(
            draw.items,
            draw.counted,
            seed=draw.seed if draw.HasField("seed") else None,
            at_step_count=draw.at_step_count if draw.HasField("at_step_count") else None,
        )


async def read_credit(requests: AsyncIterator[pb.SampleRequest], queue: SampleQueue) -> None:
    """Add what the messages after the first one grant, until there are no more or one of them is wrong."""
    try:
        async for request in requests:
            if request.HasField("open"):
                raise InvalidArgument("`open` is set again, must be set in the first message of Sample only")
            grant(queue, request)
    except TidemillError as error:
        queue.close(error)
    else:
        queue.close()
