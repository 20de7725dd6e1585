"""One actor process: `python -m tidemill.services.actor --config FILE`."""

from __future__ import annotations

import os
import socket
import sys
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from tidemill.acting.continued_from import continued_from
from tidemill.acting.writer import open_writer
from tidemill.config.load import load
from tidemill.config.on_policy import windows_per_version
from tidemill.config.sections import ActorConfig
from tidemill.envs.make import make_surviving
from tidemill.envs.watch import EnvWatch
from tidemill.errors import DataLoss, EnvFailed, Unavailable
from tidemill.inference.client import InferenceClient
from tidemill.inference.wire import Opening
from tidemill.params.watcher import ParamsWatcher
from tidemill.process import keep_freed_memory, leave, run, stop_event
from tidemill.programs.traces import start_traces
from tidemill.replay.shards.readiness import wait_for_replay
from tidemill.replay.writing.writer import ReplayWriter
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import Policy
from tidemill.rl.agents.split_policy import check_remote
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.settings.registry import LearnsOnPolicy, extra_columns_of
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.readiness import wait_for_any, wait_for_service
from tidemill.rpc.telemetry import configure_logging, identify, serve_metrics
from tidemill.services.actor.acting.loop import ActingLoop, ActingParams, PolicyParams, VersionPacer, make_throttle
from tidemill.services.actor.acting.metrics import EXPECTED, ActorMetrics, open_curves, watch_writer
from tidemill.services.actor.acting.remote_policy import RemotePolicy
from tidemill.services.actor.actor_index import actor_index, own_dns_name
from tidemill.services.actor.lock_step.actor import act_in_lock_step
from tidemill.types import EnvSpec

_log = structlog.get_logger()

_FLUSH_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run an actor until SIGTERM; return its exit code."""

    def body() -> int:
        arguments = sys.argv[1:] if argv is None else argv
        config = load(
            ActorConfig,
            arguments,
            prog="tidemill actor",
            description="Step environments and append their trajectories to the replay service.",
        )
        keep_freed_memory()
        configure_logging("actor", level=config.log.level, json=config.log.json)
        name = "actor" if config.actor.index is None else f"actor-{config.actor.index}"
        identify(config.run.name, name)
        start_traces(config.log, config.run, name)
        torch.set_num_threads(config.actor.threads)
        stop = stop_event()  # before anyone is told that it is there: the signal may follow at once
        with BackgroundServer("actor", config.actor.server) as server:
            address, metrics = server.start(), serve_metrics(config.actor.server, server.health)
            _log.info("listening", address=address, metrics=metrics)
            if not services_answer(config, stop):
                _log.info("stopped")
                return 0
            if config.run.deterministic:
                seed = training_seed(config.run.seed, config.actor.index or 0, num_envs=config.env.num_envs)
                act_in_lock_step(config, seed, server, stop)
            else:
                act(config, server, stop)
        return 0

    return run("actor", body)


def services_answer(config: ActorConfig, stop: threading.Event) -> bool:
    """Wait for the services that an actor needs; return False if `stop` was set first.

    Raises:
        Unavailable: One did not answer within `cluster.connect_timeout_s`; the message names it.
    """
    cluster, timeout_s = config.cluster, config.cluster.connect_timeout_s
    if not wait_for_replay("cluster.replay", cluster.replay, timeout_s, stop):
        return False
    if cluster.inference and config.actor.inference_fallback == "wait":
        return wait_for_any("cluster.inference", cluster.inference, timeout_s, stop)
    return wait_for_service("cluster.params", cluster.params, timeout_s, stop)


def act(config: ActorConfig, server: BackgroundServer, stop: threading.Event) -> None:
    """Put the parts of one actor together and act until `stop` is set."""
    try:
        _act(config, server, stop)
    except EnvFailed:
        if not stop.is_set():
            raise
        _log.info("stopped")  # while an environment started, which a stop does not wait for


def _act(config: ActorConfig, server: BackgroundServer, stop: threading.Event) -> None:
    settings, num_envs = config.actor, config.env.num_envs
    actor_id = settings.id or f"{socket.gethostname()}-{os.getpid()}"
    index = actor_index(settings.index, actor_id, own_dns_name() if settings.index_from_dns else "")
    EXPECTED.set(settings.count)
    identify(config.run.name, f"actor-{index}")
    slot = ActorSlot(index, num_envs, settings.count)
    is_on_policy = isinstance(config.agent, LearnsOnPolicy)  # its streams advance together
    with (
        EnvWatch(config.env, server.health) as watch,
        closing(
            watch.watched(make_surviving(config.env, num_envs, waits=is_on_policy, stop=stop, timed=watch.timed))
        ) as env,
        ExitStack() as stack,
    ):

        def initial_priority(steps: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
            return policy.initial_priority(steps)  # made below, with a seed that the replay service decides on

        writer = open_writer(
            config,
            actor_id,
            env.spec.frame_stack,
            initial_priority,
            stop,
            num_envs=num_envs,
            max_in_flight_chunks=settings.max_in_flight_chunks,
        )
        if writer is None:
            _log.info("stopped")
            return
        stack.enter_context(closing(writer))
        seed = first_seed(config, actor_id, index, writer.superseded_epoch)
        policy, params, own_params = make_policy(config, env.spec, slot, seed, stop, stack)
        watch_writer(writer, lambda: own_params.waited_s if own_params is not None else 0.0)
        throttle = make_throttle(settings.max_env_steps_per_s, num_envs, stop)
        curves = open_curves(
            config,
            actor_id,
            lambda: max(writer.env_steps, params.env_steps),
            stack,
            lambda: own_params.watcher.newest() if own_params else None,
        )
        metrics, own = ActorMetrics(settings.log_every_s, curves), extra_columns_of(config.agent, env.spec)
        pacer = make_pacer(config, own_params, writer)
        loop = ActingLoop(env, policy, params, writer, metrics, throttle, own, pacer, holds=not is_on_policy)
        if own_params is None or own_params.wait(stop):
            server.set_serving(True)
            _log.info(
                "acting starts",
                actor_id=actor_id,
                index=index,
                num_envs=num_envs,
                seed=seed,
                params_version=params.version,
            )
            loop.run(seed, stop)
        server.set_serving(False)
        with suppress(DataLoss, Unavailable):  # the line below has what is not stored
            writer.flush(_FLUSH_S)
    _log.info("stopped", unacknowledged_chunks=writer.unacknowledged_chunks, epoch=writer.epoch)


class ActingPolicy(NamedTuple):
    """Policy that an actor acts with.

    Attributes:
        policy: Chooses the actions.
        params: What is known of the parameters it does so with.
        own: Keeps the actor's own network fresh; None if it is never passed through.
    """

    policy: Policy
    params: ActingParams
    own: PolicyParams | None


def make_policy(
    config: ActorConfig, spec: EnvSpec, slot: ActorSlot, seed: int, stop: threading.Event, stack: ExitStack
) -> ActingPolicy:
    """Return the actor's policy: its own network, or with `cluster.inference` that of a service.

    Raises:
        ConfigError: The algorithm, or a setting, needs the own network.
    """
    settings, addresses = config.actor, config.cluster.inference
    only_service = bool(addresses) and settings.inference_fallback == "wait"
    # `auto` would time a network that is never passed through
    precision = "float32" if only_service else settings.precision
    policy = build_policy(config.agent, spec, seed=seed, slot=slot, precision=precision)
    own = None
    if not only_service:
        watcher = ParamsWatcher(config.cluster.params, folder=config.run.params_folder)
        own = PolicyParams(stack.enter_context(watcher), policy)
        if not addresses:
            return ActingPolicy(policy, own, own)
    algorithm = config.agent.algorithm
    check_remote(
        policy,
        prioritized=config.table.sampler == "prioritized",
        max_policy_lag=config.learner.max_policy_lag,
        keeps_params=own is not None,
        algorithm=algorithm,
    )
    opening = Opening(algorithm, slot.num_envs, spec, policy.recurrent_state_size, noise_seed=seed)
    client = stack.enter_context(closing(InferenceClient(addresses, opening, first=slot.actor_index)))
    remote = RemotePolicy(policy, client, stop, own)
    return ActingPolicy(remote, remote, own)


def make_pacer(
    config: ActorConfig, params: PolicyParams | None, writer: ReplayWriter
) -> Callable[[threading.Event], bool] | None:
    """Return the pacing that keeps `learner.max_policy_lag`; None if there is no bound."""
    lag, count = config.learner.max_policy_lag, config.actor.count
    if lag < 0 or params is None:
        return None
    windows = windows_per_version(config.agent, config.learner, count, config.env.num_envs)
    return partial(VersionPacer(windows, config.learner.publish_every, lead=lag // count).wait, params, writer)


def first_seed(config: ActorConfig, actor_id: str, index: int, superseded_epoch: int) -> int:
    """Return the seed of the first environment of an actor, given its earlier epoch at the replay service."""
    # which does not know the former process of an actor whose name is made up at each start, of one that another shard
    # had, or from before a resume without its log
    made_up = 0 if config.actor.id else zlib.crc32(actor_id.encode())
    earlier = superseded_epoch or made_up + continued_from(config)
    return training_seed(config.run.seed, index, earlier, num_envs=config.env.num_envs)


def training_seed(run_seed: int, actor_index: int, earlier: int = 0, *, num_envs: int = 1) -> int:
    """Return the seed of an actor's first environment; the others count up from it.

    A restarted actor plays other episodes than before the restart: the last one may have ended it. `earlier` is 0 at
    the first start, and another number at each later one.

    Training seeds lie from 1e8 up and below 2**31, which the Atari emulator needs; evaluation's lie far
    below, so that no evaluation episode was ever trained on.
    """
    apart = max(num_envs, 1_009)
    return 100_000_000 + (run_seed * 1_000_003 + actor_index * apart + earlier * 15_485_863) % 2_000_000_000


if __name__ == "__main__":
    leave(main())
