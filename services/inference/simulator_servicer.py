"""The simulator API: checks each message, has its step answered, packs the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import structlog

from tidemill.errors import FailedPrecondition, InvalidArgument, Reason, Unavailable
from tidemill.params.version import Params
from tidemill.rpc.addresses import caller_of
from tidemill.rpc.open_calls import OpenCalls, first_of
from tidemill.rpc.server import RpcServer
from tidemill.services.inference.evaluation import Evaluation
from tidemill.services.inference.simulators import Choice, Seat, Simulators
from tidemill.simulator.v1 import simulator_pb2 as pb
from tidemill.simulator.v1 import simulator_pb2_grpc
from tidemill.simulator.wire import (
    Declared,
    check_evaluation,
    differences,
    largest_request_bytes,
    pack_action,
    unpack_open,
    unpack_step,
)
from tidemill.types import EnvSpec

_FULL_NAME = pb.DESCRIPTOR.services_by_name["SimulatorService"].full_name

_CANCELLED_S = 0.1
"""How soon gRPC says that a call was cancelled whose messages have ended, which looks like a half-close until then."""

_MAX_EVALUATIONS = 4
"""Calls at a time, of which the newest counts: an evaluator that has restarted may find its former call still open."""

_log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]


class SimulatorServicer(simulator_pb2_grpc.SimulatorServiceServicer):
    """Answers the calls of `SimulatorService`."""

    def __init__(
        self,
        simulators: Simulators,
        spec: EnvSpec,
        run: str,
        fetch: Callable[[int], Params],
        *,
        max_calls: int,
        max_calls_per_caller: int,
        timeout_s: float,
    ) -> None:
        """Create the servicer.

        Args:
            simulators: Answers the steps.
            spec: What a client's spaces must be.
            run: Name of the run.
            fetch: Returns a version of the parameters.
            max_calls: Most calls at a time.
            max_calls_per_caller: Most calls at a time of one caller.
            timeout_s: Longest wait for a step, in seconds.
        """
        self._simulators, self._spec, self._run, self._timeout_s = simulators, spec, run, timeout_s
        self._calls = OpenCalls(
            "inference service",
            max_calls,
            "inference.simulators",
            most_each=max_calls_per_caller,
            setting_each="inference.simulators_per_client",
        )
        self._evaluations, self._fetch = OpenCalls("inference service", _MAX_EVALUATIONS, "one per run"), fetch
        self._most_bytes = largest_request_bytes(spec)

    def add_to(self, server: RpcServer) -> None:
        """Register this servicer with a server."""
        play = grpc.stream_stream_rpc_method_handler(self.Play, self._read, pb.PlayResponse.SerializeToString)
        evaluate = grpc.unary_stream_rpc_method_handler(
            self.Evaluate, pb.EvaluateRequest.FromString, pb.EvaluateResponse.SerializeToString
        )
        handler = grpc.method_handlers_generic_handler(_FULL_NAME, {"Play": play, "Evaluate": evaluate})
        server.grpc.add_generic_rpc_handlers((handler,))
        server.announce(_FULL_NAME)

    def close(self) -> None:
        """End the calls in progress, because the server stops."""
        self._calls.close()
        self._evaluations.close()
        self._simulators.close()

    async def Play(
        self, request_iterator: AsyncIterator[pb.PlayRequest], context: Context
    ) -> AsyncIterator[pb.PlayResponse]:
        """Play the episodes of one client's environment."""
        caller = caller_of(context.peer())
        with self._calls.running(caller):
            declared = unpack_open(await first_of(request_iterator, pb.PlayRequest()), self._spec)
            self._check_spaces(declared)
            seat = await self._simulators.join(declared, caller)
            call, is_over = seat.calls, False
            opened = self._opened(seat)
            _log.info(
                "simulator connected", client=declared.client, slot=seat.slot, resumed=opened.resumed, caller=caller
            )
            try:
                yield pb.PlayResponse(opened=opened)
                while (request := await self._next(request_iterator, declared)) is not None:
                    choice = await self._simulators.play(seat, call, unpack_step(request, self._spec))
                    yield pb.PlayResponse(decision=self._decision(choice))
                await asyncio.sleep(_CANCELLED_S)
                is_over = True
            except InvalidArgument as error:
                is_over = True
                raise InvalidArgument(f"client {declared.client!r}: {error}", reason=error.reason) from error
            finally:
                self._simulators.leave(seat, call, at_once=is_over)
                _log.info("simulator left", client=declared.client, slot=seat.slot)

    async def Evaluate(self, request: pb.EvaluateRequest, context: Context) -> AsyncIterator[pb.EvaluateResponse]:
        """Measure a version by the next episodes of the clients."""
        with self._evaluations.running():
            check_evaluation(request, self._spec)
            params = await asyncio.to_thread(self._fetch, request.params_version)
            evaluation = Evaluation(request.episodes, request.epsilon)
            self._simulators.evaluate(evaluation, params, is_last=request.is_last)
            try:
                async for end in evaluation.ends():
                    yield pb.EvaluateResponse(
                        episode_return=end.episode_return, length=end.length, has_failed=end.has_failed
                    )
            finally:
                self._simulators.end_evaluation(evaluation)

    def _read(self, data: bytes) -> pb.PlayRequest:
        """Return the message of its bytes; one that is too long is refused before it is unpacked."""
        if len(data) > self._most_bytes:
            raise InvalidArgument(
                f"a message of Play has {len(data)} bytes, allowed: at most {self._most_bytes}", reason=Reason.TOO_LARGE
            )
        return pb.PlayRequest.FromString(data)

    def _check_spaces(self, declared: Declared) -> None:
        if differing := "; ".join(differences(self._spec, declared.spec)):
            raise FailedPrecondition(
                f"client {declared.client!r} does not fit run {self._run!r}: {differing}", reason=Reason.SPACES_DIFFER
            )

    async def _next(self, requests: AsyncIterator[pb.PlayRequest], declared: Declared) -> pb.PlayRequest | None:
        """Return the next message; None at the end of the call."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await anext(requests, None)
        except TimeoutError:
            limit = f"{self._timeout_s:g} s (inference.simulator_timeout_s)"
            raise Unavailable(
                f"client {declared.client!r} sent no step for {limit}; call again", reason=Reason.CALLER_SILENT
            ) from None

    def _opened(self, seat: Seat) -> pb.Opened:
        opened = pb.Opened(run=self._run)
        if seat.episode is not None and not seat.episode.is_over:
            opened.resumed, opened.next_step = True, seat.episode.next_step
            if seat.newest is not None:
                opened.decision.CopyFrom(self._decision(seat.newest))
        return opened

    def _decision(self, choice: Choice) -> pb.Decision:
        return pb.Decision(
            step=choice.step,
            action=None if choice.action is None else pack_action(choice.action, self._spec),
            params_version=choice.params_version,
            resume_token=choice.resume_token,
            stored_steps=choice.stored_steps,
        )
