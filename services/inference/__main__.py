"""One inference service: `python -m tidemill.services.inference --config FILE`."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import sys
import threading
from collections.abc import Sequence
from functools import partial

import numpy as np
import structlog
import torch

from tidemill import gpus, process
from tidemill.config.load import load
from tidemill.config.sections import InferenceConfig
from tidemill.devices import named_device
from tidemill.envs.watch import watched_spec
from tidemill.inference.wire import Opening
from tidemill.near_processors import use_near_processors
from tidemill.params.watcher import ParamsWatcher
from tidemill.programs.traces import start_traces
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import Policy
from tidemill.rl.agents.split_policy import check_split
from tidemill.rl.exploration import ActorSlot
from tidemill.rpc.readiness import wait_for_service
from tidemill.rpc.server import RpcServer
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.telemetry import configure_logging, identify, serve_metrics
from tidemill.services.inference.batcher import Batcher
from tidemill.services.inference.forward_thread import ForwardThread, PendingStep
from tidemill.services.inference.metrics import Metrics
from tidemill.services.inference.open_simulators import serve_simulators
from tidemill.services.inference.servicer import InferenceServicer
from tidemill.simulator.wire import largest_request_bytes
from tidemill.types import EnvSpec

_SERVICE = "inference"
_OVERHEAD_BYTES = 4096  # of a message beside its arrays

_log = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Run an inference service until SIGTERM; return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return process.run(_SERVICE, partial(_start, arguments))


def _start(arguments: Sequence[str]) -> int:
    about = "Compute actions for the actors of a run with its newest network, in batches."
    config = load(InferenceConfig, arguments, prog=f"tidemill {_SERVICE}", description=about)
    process.keep_freed_memory()
    configure_logging(_SERVICE, level=config.log.level, json=config.log.json)
    identify(config.run.name, _SERVICE)
    start_traces(config.log, config.run, _SERVICE)
    torch.set_num_threads(config.inference.threads)
    stop = process.stop_event()
    if not wait_for_service("cluster.params", config.cluster.params, config.cluster.connect_timeout_s, stop):
        return 0
    spec = watched_spec(config.env)
    compute(config, spec, stop)
    return 0


def compute(config: InferenceConfig, spec: EnvSpec, stop: process.StopEvent) -> None:
    """Make the policy on its device, and serve until SIGTERM.

    Raises:
        ConfigError: See `named_device` and `make_policy`.
        FatalError: The GPU is full, or a run that has trained has lost it.
    """
    settings = config.inference
    with gpus.retried_if_lost(config.run.folder):
        device = named_device("inference.device", settings.device, gpu=settings.index, wraps=True)
    if device.type == "cuda":
        use_near_processors(device)
    with gpus.full_gpu_explained(device, "choose a smaller inference.max_batch, set inference.device cpu"):
        policy = make_policy(config, spec, device)
        asyncio.run(serve(config, spec, policy, device, stop))


def make_policy(config: InferenceConfig, spec: EnvSpec, device: torch.device) -> Policy:
    """Return the policy whose network is passed through.

    Raises:
        ConfigError: The algorithm's network cannot be passed through by a service.
    """
    settings = config.inference
    slot = ActorSlot(num_envs=settings.max_batch)
    policy = build_policy(config.agent, spec, str(device), config.run.seed, slot, settings.precision)
    check_split(policy, config.agent.algorithm)
    return policy


def request_limit(config: InferenceConfig, spec: EnvSpec, recurrent_state_size: int) -> ServerSettings:
    """Return the server's settings with no larger requests than an actor or a simulator has to make."""
    server, envs = config.inference.server, config.inference.max_batch
    observation = spec.observation_size * np.dtype(spec.observation_dtype).itemsize
    numbers = 8 * (math.prod(spec.action_shape) + recurrent_state_size + 2)
    act = envs * (observation + numbers) + _OVERHEAD_BYTES
    largest = max(act, largest_request_bytes(spec))
    return dataclasses.replace(server, max_request_bytes=min(server.request_limit_bytes, largest))


async def serve(
    config: InferenceConfig, spec: EnvSpec, policy: Policy, device: torch.device, stopped: process.StopEvent
) -> None:
    """Put the parts of one service together and serve until SIGTERM, or not at all if that has set `stopped`."""
    settings, metrics = config.inference, Metrics()
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()
    server = RpcServer(_SERVICE, request_limit(config, spec, policy.recurrent_state_size))
    watcher = ParamsWatcher(config.cluster.params, folder=config.run.params_folder)
    batcher: Batcher[PendingStep] = Batcher(settings.max_batch, settings.max_wait_ms / 1000.0)

    def tell(error: BaseException) -> None:
        if not failed.done():
            failed.set_exception(error)

    def fail(error: BaseException) -> None:
        loop.call_soon_threadsafe(tell, error)

    evaluating = make_policy(config, spec, device) if settings.simulators else None
    forward = ForwardThread(policy, watcher, batcher, metrics, fail, evaluating)
    served = Opening(config.agent.algorithm, settings.max_batch, spec, policy.recurrent_state_size)
    servicer = InferenceServicer(
        served, forward, device, metrics, max_batch=settings.max_batch, max_streams=settings.max_streams
    )
    stop, stopping = process.stop_requested(stopped), threading.Event()
    stop.add_done_callback(lambda _: stopping.set())
    simulators = await serve_simulators(config, spec, policy, device, forward, fail, stopping)
    for each in (servicer, simulators):
        if each is not None:
            each.add_to(server)
    metrics_address = serve_metrics(settings.server, server.health)
    _log.info("serving", address=await server.start(), metrics=metrics_address, device=str(device))
    await server.set_serving(True)
    try:
        await asyncio.wait((stop, failed), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()  # raises
    finally:
        stop.cancel()
        stopping.set()
        await server.set_serving(False)
        for each in (servicer, simulators):
            if each is not None:
                each.close()
        await server.stop()
        watcher.close()
        forward.close()
    _log.info("stopped")


if __name__ == "__main__":
    process.leave(main())
