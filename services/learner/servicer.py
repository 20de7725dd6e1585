"""The control API: each call is a request to the training thread or reads its status."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import grpc.aio

from tidemill.errors import InvalidArgument, Reason, Unavailable
from tidemill.learner.status import LearnerStatus
from tidemill.learner.v1 import learner_pb2 as pb
from tidemill.learner.v1 import learner_pb2_grpc
from tidemill.rpc.server import RpcServer
from tidemill.services.learner.status.control import Control

CHECKPOINT_TIMEOUT_S = 50.0
"""Longest a caller waits for a checkpoint: a step, the copy and the disk. Below the client's deadline."""
_MAX_REASON = 1_000

Context = grpc.aio.ServicerContext[Any, Any]


class LearnerServicer(learner_pb2_grpc.LearnerServiceServicer):
    """Answers the callers of `LearnerService`; runs on the server's own thread."""

    def __init__(
        self,
        control: Control,
        status: Callable[[], LearnerStatus],
        checkpoint_timeout_s: float = CHECKPOINT_TIMEOUT_S,
    ) -> None:
        self._control, self._status, self._checkpoint_timeout_s = control, status, checkpoint_timeout_s

    def add_to(self, server: RpcServer) -> None:
        """Serve this API, with health and reflection."""
        learner_pb2_grpc.add_LearnerServiceServicer_to_server(self, server.grpc)
        server.announce(pb.DESCRIPTOR.services_by_name["LearnerService"].full_name)

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """Report what the learner is doing."""
        return _pack(self._status())

    async def Pause(self, request: pb.PauseRequest, context: Context) -> pb.PauseResponse:
        """Stop taking updates; FAILED_PRECONDITION while stopping."""
        self._control.pause()
        return pb.PauseResponse()

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:
        """Continue after a pause; FAILED_PRECONDITION while stopping."""
        self._control.resume()
        return pb.ResumeResponse()

    async def SaveCheckpoint(self, request: pb.SaveCheckpointRequest, context: Context) -> pb.SaveCheckpointResponse:
        """Write a checkpoint between two steps and answer when it is on disk."""
        future = asyncio.wrap_future(self._control.request_checkpoint())
        try:
            saved = await asyncio.wait_for(future, self._checkpoint_timeout_s)
        except TimeoutError as error:
            raise Unavailable(
                f"no checkpoint within {self._checkpoint_timeout_s:g} s; the learner may be starting",
                reason=Reason.BUSY,
            ) from error
        return pb.SaveCheckpointResponse(path=saved.path, learner_steps=saved.learner_steps)

    async def Stop(self, request: pb.StopRequest, context: Context) -> pb.StopResponse:
        """Ask the learner to end with status 0."""
        if len(request.reason) > _MAX_REASON:
            raise InvalidArgument(f"reason has {len(request.reason)} characters, allowed: at most {_MAX_REASON}")
        self._control.stop(request.reason or "stopped by a caller")
        return pb.StopResponse()


def _pack(status: LearnerStatus) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(**dataclasses.asdict(status) | {"state": status.state.value})
