"""The synchronous client of a learner's control service."""

from __future__ import annotations

import dataclasses
from typing import Any

from tidemill.closing import Closing
from tidemill.learner.status import LearnerState, LearnerStatus, SavedCheckpoint, SourceStatus
from tidemill.learner.v1 import learner_pb2 as pb
from tidemill.learner.v1 import learner_pb2_grpc
from tidemill.replay.argument_types import check_address, check_deadline
from tidemill.replay.sampling.shard_report import ShardReport
from tidemill.rpc.channel import DEADLINE_S, open_channel
from tidemill.rpc.status import translated

CHECKPOINT_DEADLINE_S = 60.0
"""Deadline of a checkpoint: it waits for the step in progress and for the disk, in seconds."""


class LearnerClient(Closing):
    """Looks at a running learner and controls it. Safe to use from several threads.

    Every call raises `Unavailable` when the learner cannot be reached or does not answer within its deadline.

    Example:
        >>> import tidemill
        >>> with tidemill.LearnerClient("127.0.0.1:7403") as learner:
        ...     learner.pause()
        ...     learner.resume()
        ...     learner.get_status().learner_steps >= 0
        True
    """

    def __init__(self, address: str, *, deadline_s: float = DEADLINE_S) -> None:
        """Prepare a channel; it connects with the first call.

        Args:
            address: `host:port`, `dns:///name:port` or `unix:///path`.
            deadline_s: Longest wait for an answer, in seconds; checkpoints have a separate deadline.
        """
        check_address(address)
        check_deadline("deadline_s", deadline_s)
        self._channel = open_channel(address)
        self._stub = learner_pb2_grpc.LearnerServiceStub(self._channel)
        self._deadline_s = deadline_s

    def get_status(self) -> LearnerStatus:
        """Return the status of the learner."""
        with translated():
            return _unpack(self._stub.GetStatus(pb.GetStatusRequest(), timeout=self._deadline_s))

    def pause(self) -> None:
        """Stop taking updates after the current one.

        Raises:
            FailedPrecondition: The learner is stopping.
        """
        with translated():
            self._stub.Pause(pb.PauseRequest(), timeout=self._deadline_s)

    def resume(self) -> None:
        """Continue after a pause; no effect when not paused.

        Raises:
            FailedPrecondition: The learner is stopping.
        """
        with translated():
            self._stub.Resume(pb.ResumeRequest(), timeout=self._deadline_s)

    def save_checkpoint(self, *, deadline_s: float = CHECKPOINT_DEADLINE_S) -> SavedCheckpoint:
        """Write a checkpoint and return when it is on disk.

        Raises:
            FailedPrecondition: The learner is stopping.
            ResourceExhausted: The disk is full.
        """
        check_deadline("deadline_s", deadline_s)
        with translated():
            response = self._stub.SaveCheckpoint(pb.SaveCheckpointRequest(), timeout=deadline_s)
        return SavedCheckpoint(response.path, response.learner_steps)

    def stop(self, reason: str) -> None:
        """Ask the learner to publish, checkpoint and exit with status 0; returns at once."""
        with translated():
            self._stub.Stop(pb.StopRequest(reason=reason), timeout=self._deadline_s)

    def close(self) -> None:
        """Close the channel. May be called twice."""
        self._channel.close()


def _unpack(response: pb.GetStatusResponse) -> LearnerStatus:
    known = {state.value for state in LearnerState}
    values = _values(LearnerStatus, response) | {
        "state": LearnerState(response.state) if response.state in known else LearnerState.UNKNOWN,
        "metrics": dict(response.metrics),
        "shards": tuple(ShardReport(**_values(ShardReport, shard)) for shard in response.shards),
        "sources": tuple(SourceStatus(**_values(SourceStatus, source)) for source in response.sources),
    }
    return LearnerStatus(**values)


def _values(kind: Any, message: object) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    """Return a message's values by the names of a dataclass's fields."""
    return {field.name: getattr(message, field.name) for field in dataclasses.fields(kind)}
