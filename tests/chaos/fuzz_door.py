"""Every service of the project in this process, called over HTTP/2 or, which is twenty times cheaper, without it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import threading
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
import numpy as np
import torch
from prometheus_client import CollectorRegistry

from tests.chaos.fuzz_cases import Case, Corpus
from tests.support.inference_service import FixedParams, Played, state_of
from tests.support.replay_streams import make_config
from tests.support.rpc_methods import METHODS
from tidemill.inference.wire import Opening, pack_step
from tidemill.learner.status import LearnerStatus
from tidemill.params.version import Params
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import SplitPolicy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rpc.interceptors import CallInterceptor
from tidemill.rpc.server import RpcServer
from tidemill.rpc.settings import MEBIBYTE, ServerSettings
from tidemill.services.inference.batcher import Batcher
from tidemill.services.inference.episode import Episode
from tidemill.services.inference.forward_thread import ForwardThread
from tidemill.services.inference.metrics import Metrics as InferenceMetrics
from tidemill.services.inference.metrics import SimulatorMetrics
from tidemill.services.inference.resume_token import Identity
from tidemill.services.inference.servicer import InferenceServicer
from tidemill.services.inference.simulator_servicer import SimulatorServicer
from tidemill.services.inference.simulators import Simulators
from tidemill.services.learner.servicer import LearnerServicer
from tidemill.services.learner.status.control import Control
from tidemill.services.paramserver.metrics import Metrics as ParamMetrics
from tidemill.services.paramserver.servicer import ParamServicer
from tidemill.services.paramserver.version_notifier import VersionNotifier
from tidemill.services.paramserver.version_store import VersionStore
from tidemill.services.paramserver.writer import StoreWriter
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.servicer import ReplayServicer
from tidemill.services.replay.state.memory import MemoryBudget
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.simulator.wire import Declared, SeenStep, pack_open
from tidemill.simulator.wire import pack_step as pack_step_of_simulator
from tidemill.types import EnvSpec, signature_of

MOST_TABLES, MOST_STREAMS, STORED_BYTES = 4, 200, 8 * MEBIBYTE
_ENVS = 2
_SIMULATORS, _SIMULATORS_PER_CLIENT = 8, 6
_ATTACKER, _OTHER = "ipv4:192.0.2.1:1", "ipv4:192.0.2.2:1"
_PLAY = "/tidemill.simulator.v1.SimulatorService/Play"
_MOST_ANSWERS = 8
_LONGEST_S = 0.05
"""How long a call that may wait is let wait."""
_REFUSED_S = 60.0
_Code = grpc.StatusCode
_TRIES = 50
_NOT_SENT = "Internal error from Core"
"""What gRPC's client now and then says instead of the server's status, if the call ended before all was sent."""
_SPEC = EnvSpec((3,), "float32", num_actions=4)
_DQN = DQNConfig(network="mlp", hidden_sizes=(16,))


class Door:
    """Servers with a table `t`, a publisher with the first fencing token, and parameters to act with."""

    def __init__(self, folder: Path) -> None:
        """Make them; the folder is the parameter server's."""
        self.replay = ReplayState(
            max_tables=MOST_TABLES,
            max_streams=MOST_STREAMS,
            first_epoch=1,
            rng=np.random.default_rng(0),
            clock=time.time,
            budget=MemoryBudget(STORED_BYTES),
        )
        self.replay.create_table(make_config())
        self.store = VersionStore(folder, keep_versions=5, max_blob_bytes=MEBIBYTE, max_tags=8, max_fetch_bytes=2**23)
        self.store.acquire_fencing_token(0)
        self._errors: list[BaseException] = []
        self._collected = _Collected()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen."""
        messages = 4 * MEBIBYTE
        self._server = RpcServer("fuzzed", ServerSettings("127.0.0.1:0", grace_s=0.2, max_message_bytes=messages))
        notifier, registry = VersionNotifier(), CollectorRegistry()
        writer = StoreWriter(self.store, notifier, clock=lambda: datetime.datetime.now(datetime.UTC), stall_s=5.0)
        for close in (self.store.close, writer.close):
            self._stack.callback(close)
        metrics = ParamMetrics(lambda: self.store.catalog, registry)
        collected: Any = self._collected
        inference, simulator, self.corpus = self._inference()
        self._stack.callback(inference.close)
        self._stack.callback(simulator.close)
        for servicer in (
            ReplayServicer(self.replay, AdmissionQueue(time.monotonic), messages),
            ParamServicer(self.store, writer, notifier, metrics, max_fetch_bytes=2**23),
            LearnerServicer(Control(threading.Event()), LearnerStatus),
            inference,
            simulator,
        ):
            servicer.add_to(self._server)
            servicer.add_to(collected)
        address = await self._server.start()
        self._stack.push_async_callback(self._server.stop)
        await self._server.set_serving(True)
        self._channel = await self._stack.enter_async_context(grpc.aio.insecure_channel(address))
        return self

    async def __aexit__(self, *_: object) -> None:
        """End everything."""
        await self._stack.aclose()
        assert not self._errors, self._errors

    def stored(self) -> tuple[object, ...]:
        """Return the state that refused calls must leave unchanged."""
        tables = [(table.config, table.counters.inserts, table.size) for table in self.replay.tables]
        return (tables, self.replay.chunks, sorted(self.store.catalog.versions), self.store.catalog.all_tags)

    async def call(self, case: Case, longest_s: float = _LONGEST_S, peer: str = _ATTACKER) -> grpc.StatusCode:
        """Make a call as the server's own code would see it, for at most so many seconds; return its status."""
        method, context = METHODS[case.path], _Context(peer)
        handler = await self._collected.handler(case.path)
        try:
            async with asyncio.timeout(_REFUSED_S if case.refused else longest_s):
                request: Any = _each(case.messages) if method.client_streaming else case.messages[-1]
                if method.server_streaming:
                    respond = handler.stream_stream or handler.unary_stream
                    async with contextlib.aclosing(respond(request, context)) as answers:
                        await _take(answers)
                else:
                    await (handler.stream_unary or handler.unary_unary)(request, context)
        except grpc.aio.AbortError:
            return context.status
        except TimeoutError:
            return _Code.DEADLINE_EXCEEDED
        return _Code.OK

    async def lets_others_play(self) -> bool:
        """True if a simulator on another machine than those that attack gets a slot and an action."""
        case = Case(_PLAY, tuple(self.corpus.raw(_PLAY)), refused=True)
        return await self.call(case, peer=_OTHER) is _Code.OK

    async def call_over_http(self, case: Case) -> grpc.StatusCode:
        """Make a call through a connection; return its status."""
        for _ in range(_TRIES):
            try:
                return await self._call_over_http(case)
            except grpc.aio.AioRpcError as error:
                if error.details() != _NOT_SENT:
                    return error.code()
            except asyncio.CancelledError:  # by gRPC's client itself, which could not send all
                if (task := asyncio.current_task()) and task.cancelling():
                    raise
        return _Code.UNKNOWN

    async def _call_over_http(self, case: Case) -> grpc.StatusCode:
        method, timeout_s = METHODS[case.path], _REFUSED_S if case.refused else 10 * _LONGEST_S
        kinds = {(False, False): "unary_unary", (True, False): "stream_unary", (False, True): "unary_stream"}
        kind = kinds.get((method.client_streaming, method.server_streaming), "stream_stream")
        request = list(case.messages) if method.client_streaming else case.messages[-1]
        call = getattr(self._channel, kind)(case.path)(request, timeout=timeout_s)
        if not method.server_streaming:
            await call
        elif not await _take(aiter(call)):
            call.cancel()
        return _Code.OK

    def _inference(self) -> tuple[InferenceServicer, SimulatorServicer, Corpus]:
        policy = build_policy(_DQN, _SPEC, slot=ActorSlot(num_envs=_ENVS))
        params, metrics = FixedParams(), InferenceMetrics(CollectorRegistry())
        params.set(state_of(_DQN, _SPEC))
        watcher: Any = params
        forward = ForwardThread(
            policy, watcher, Batcher(_ENVS, 0.001), metrics, self._errors.append, build_policy(_DQN, _SPEC)
        )
        self._stack.callback(forward.close)
        served = Opening(_DQN.algorithm, _ENVS, _SPEC, policy.recurrent_state_size)
        step = pack_step(Played(_SPEC, _ENVS, 0).next(), _SPEC.frame_stack, whole=True)
        device = torch.device("cpu")
        servicer = InferenceServicer(served, forward, device, metrics, max_batch=_ENVS, max_streams=100)
        newest = params.newest()
        assert newest is not None
        simulators = _simulators(forward, self._errors, newest)
        first = SeenStep(0, np.zeros(_SPEC.observation_shape, _SPEC.observation_dtype))
        simulated = (pack_open(Declared("fuzzed", _SPEC)), pack_step_of_simulator(first, _SPEC))
        return servicer, simulators, Corpus(served, step.SerializeToString(), simulated)


def _simulators(forward: ForwardThread, errors: list[BaseException], params: Params) -> SimulatorServicer:
    def explorer(slot: int) -> SplitPolicy:
        policy = build_policy(_DQN, _SPEC, slot=ActorSlot(slot, 1, _SIMULATORS))
        assert isinstance(policy, SplitPolicy)
        return policy

    rows: Any = _Rows()
    simulators = Simulators(
        rows,
        forward,
        partial(Episode, _SPEC, 0, ()),
        explorer,
        Identity(None),
        SimulatorMetrics(CollectorRegistry()),
        errors.append,
        slots=_SIMULATORS,
        slots_per_caller=_SIMULATORS_PER_CLIENT,
        grace_s=0.01,
        max_wait_s=0.001,
        device=torch.device("cpu"),
        rng=np.random.default_rng(0),
    )
    return SimulatorServicer(
        simulators,
        _SPEC,
        "fuzzed",
        lambda _: params,
        max_calls=100,
        max_calls_per_caller=90,
        timeout_s=_LONGEST_S,
    )


class _Rows:
    """Takes the rows of simulators as a writer does, and forgets them."""

    epoch, env_steps, blocked_s = 1, 0, 0.0

    def __init__(self) -> None:
        self.next_steps = self.stored_steps = np.zeros(_SIMULATORS, np.int64)

    async def append_async(self, columns: Mapping[str, Any], *, env: int, **_: object) -> None:
        """Take one."""
        signature = {column.name: (column.dtype, column.shape) for column in signature_of(_SPEC)}
        assert {name: (str(value.dtype), value.shape) for name, value in columns.items()} == signature
        self.next_steps[env] += 1

    def close(self) -> None:
        """End."""


class _Collected:
    """Takes the handlers that servicers give a server, and calls them as its interceptor does."""

    def __init__(self) -> None:
        self.grpc = self
        self._handlers: list[Any] = []
        self._interceptor = CallInterceptor()
        self._found: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:  # noqa: ANN401 - of grpc, here and below
        """Take some."""
        self._handlers += handlers

    def add_registered_method_handlers(self, *_: Any) -> None:  # noqa: ANN401
        """Leave the same ones in their other form."""

    def announce(self, _name: str) -> None:
        """Tell nobody."""

    async def handler(self, path: str) -> Any:  # noqa: ANN401
        """Return the handler of a method."""
        if path not in self._found:
            details: Any = _Details(path)
            found = next(handler for each in self._handlers if (handler := each.service(details)))
            self._found[path] = await self._interceptor.intercept_service(_returning(found), details)
        return self._found[path]


class _Details:
    """Which method is called."""

    invocation_metadata = ()

    def __init__(self, method: str) -> None:
        self.method = method


class _Context:
    """What a handler may ask of its call."""

    status = _Code.UNKNOWN

    def __init__(self, peer: str) -> None:
        self._peer = peer

    async def abort(self, code: grpc.StatusCode, _details: str = "", _trailing_metadata: object = ()) -> None:
        """End the call."""
        self.status = code
        raise grpc.aio.AbortError

    def code(self) -> grpc.StatusCode:
        """Return how the call ended."""
        return self.status

    def peer(self) -> str:
        """Return who calls."""
        return self._peer


def _returning(handler: Any) -> Any:  # noqa: ANN401
    async def continuation(_details: object) -> Any:  # noqa: ANN401
        return handler

    return continuation


async def _each(messages: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def _take(answers: Any) -> bool:  # noqa: ANN401
    """Read answers until there are none or enough; return whether there are none."""
    count = 0
    async for _ in answers:
        count += 1
        if count == _MOST_ANSWERS:
            return False
    return True
