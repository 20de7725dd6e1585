"""The inference API: checks each message, lets its step wait for the network, packs the answer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc.aio
import structlog
import torch

from tidemill.errors import FailedPrecondition, InvalidArgument, Reason
from tidemill.inference.v1 import inference_pb2 as pb
from tidemill.inference.v1 import inference_pb2_grpc
from tidemill.inference.wire import Opening, agreement, pack_answer, unpack_open, unpack_step
from tidemill.rpc.open_calls import OpenCalls, first_of
from tidemill.rpc.server import RpcServer
from tidemill.services.inference.forward_thread import ForwardThread
from tidemill.services.inference.metrics import Metrics
from tidemill.services.inference.session import Session

_FULL_NAME = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name

_log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Answers the calls of `InferenceService`."""

    def __init__(
        self,
        served: Opening,
        forward: ForwardThread,
        device: torch.device,
        metrics: Metrics,
        *,
        max_batch: int,
        max_streams: int,
    ) -> None:
        """Create the servicer.

        Args:
            served: What an actor's opening must agree with.
            forward: The network's thread.
            device: Where the network is.
            metrics: Counts actors.
            max_batch: Most environments of one actor.
            max_streams: Most calls at a time.
        """
        self._served, self._forward, self._device, self._metrics = served, forward, device, metrics
        self._max_batch = max_batch
        self._calls = OpenCalls("inference service", max_streams, "inference.max_streams")

    def add_to(self, server: RpcServer) -> None:
        """Register this servicer with a server."""
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, server.grpc)
        server.announce(_FULL_NAME)

    def close(self) -> None:
        """End the calls in progress, because the server stops."""
        self._calls.close()

    async def Act(
        self, request_iterator: AsyncIterator[pb.ActRequest], context: Context
    ) -> AsyncIterator[pb.ActResponse]:
        """Answer an actor's steps."""
        with self._calls.running():
            opening = await self._opening(request_iterator)
            session = Session(opening, self._device)
            with self._connected(opening):
                async for request in request_iterator:
                    policy_input = session.take(unpack_step(request, opening))
                    answer = await self._forward.answer(policy_input, session.noise)
                    session.remember(answer.arrays)
                    yield pack_answer(answer)

    async def _opening(self, requests: AsyncIterator[pb.ActRequest]) -> Opening:
        """Return the contents of the first message, checked."""
        opening = unpack_open(await first_of(requests, pb.ActRequest()))
        if differing := "; ".join(agreement(self._served, opening)):
            raise FailedPrecondition(
                f"this service acts for another run: {differing}; start both with the settings of one run",
                reason=Reason.RUN_DIFFERS,
            )
        if not 1 <= opening.num_envs <= self._max_batch:
            allowed = f"1 to inference.max_batch ({self._max_batch})"
            raise InvalidArgument(f"num_envs is {opening.num_envs}, allowed: {allowed}")
        return dataclasses.replace(self._served, num_envs=opening.num_envs, noise_seed=opening.noise_seed)

    @contextlib.contextmanager
    def _connected(self, opening: Opening) -> Iterator[None]:
        """Count an actor, for whose steps batches wait."""
        _log.info("actor connected", num_envs=opening.num_envs)
        self._forward.count_actors(1)
        self._metrics.actors.inc()
        try:
            yield
        finally:
            self._forward.count_actors(-1)
            self._metrics.actors.dec()
            _log.info("actor left", num_envs=opening.num_envs)
