"""Puts together what answers programs that play as clients."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import zlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import structlog
import torch

from tidemill.acting.continued_from import continued_from
from tidemill.acting.writer import open_writer
from tidemill.config.sections import InferenceConfig
from tidemill.config.services import InferenceSettings
from tidemill.errors import FailedPrecondition, InvalidArgument
from tidemill.params.client import ParamsClient
from tidemill.params.stored import OwnFolder
from tidemill.params.version import Params
from tidemill.replay.shards.readiness import wait_for_replay
from tidemill.replay.writing.writer import ReplayWriter
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import Policy, SplitPolicy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.settings.registry import extra_columns_of
from tidemill.rpc.tls import is_local
from tidemill.services.inference.episode import Episode
from tidemill.services.inference.forward_thread import ForwardThread
from tidemill.services.inference.metrics import SimulatorCurves, SimulatorMetrics
from tidemill.services.inference.resume_token import Identity
from tidemill.services.inference.simulator_servicer import SimulatorServicer
from tidemill.services.inference.simulators import Simulators
from tidemill.types import EnvSpec

_CHUNKS_IN_FLIGHT = 2  # of each simulator, as of each environment of an actor

_log = structlog.get_logger()


def writer_name(run: str, index: int) -> str:
    """Return the name of the writer of the service with an index on this machine."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64]
    return f"simulators-{host}-{zlib.crc32(run.encode()):08x}-{index}"


def most_per_client(settings: InferenceSettings) -> int:
    """Return how many simulators of one address may be connected."""
    if settings.simulators_per_client > 0:
        return settings.simulators_per_client
    # programs on this machine have one address, and are of one user
    return settings.simulators if is_local(settings.server.address) else -(-settings.simulators // 2)


def open_identity(config: InferenceConfig, name: str) -> Identity:
    """Return the identity that a restarted service keeps; in memory only if the run's folder cannot be written here."""
    folder = config.run.folder
    is_kept = os.access(folder, os.W_OK)
    if not is_kept:
        _log.info(
            "cannot write to the run's folder: episodes of simulators will not survive a restart of this service",
            folder=str(folder),
        )
    return Identity(folder / "simulators" / f"{name}.json" if is_kept else None)


def open_curves(config: InferenceConfig, newest: Callable[[], Params | None]) -> SimulatorCurves | None:
    """Return the curves of simulators; None where the run's folder cannot be written here, or no curves are wanted.

    `newest` gives the newest parameters of the run; if the folder has others, nothing is written.
    """
    every_s, folder = config.learner.tensorboard_every_s, config.run.folder
    if not every_s or not os.access(folder, os.W_OK):
        return None
    is_own = OwnFolder(config.run.params_folder, newest)
    return SimulatorCurves(folder, f"inference-{config.inference.index}", every_s, is_own)


def open_simulator_writer(
    config: InferenceConfig, spec: EnvSpec, policy: Policy, name: str, epoch: int, stop: threading.Event
) -> ReplayWriter | None:
    """Return the writer of all simulators once the table is there; None if `stop` was set before.

    It continues the streams of an epoch; if it cannot, it opens new ones, and the episodes end.
    """
    cluster = config.cluster
    if not wait_for_replay("cluster.replay", cluster.replay, cluster.connect_timeout_s, stop):
        return None

    def opened(epoch: int) -> ReplayWriter | None:
        return open_writer(
            config,
            name,
            spec.frame_stack,
            policy.initial_priority,
            stop,
            num_envs=config.inference.simulators,
            max_in_flight_chunks=_CHUNKS_IN_FLIGHT,
            epoch=epoch,
        )

    try:
        return opened(epoch)
    except (InvalidArgument, FailedPrecondition) as error:  # of several shards, or of streams that are others now
        if not epoch:
            raise
        _log.warning("cannot continue the episodes of simulators, which begin new ones", reason=str(error))
        return opened(0)


def exploration_seeds(config: InferenceConfig, writer: ReplayWriter) -> tuple[int, ...]:
    """Return the seeds of a service's exploration, which differ on each machine, for each index and after a restart.

    A restarted service continues its streams behind the steps that they have, or supersedes them; where the replay
    service has lost them, it has neither.
    """
    host, own = zlib.crc32(socket.gethostname().encode()), (config.run.seed, continued_from(config))
    return *own, host, config.inference.index, writer.superseded_epoch, int(writer.next_steps.sum())


def make_explorer(config: InferenceConfig, spec: EnvSpec, seeds: Sequence[int], slot: int) -> SplitPolicy:
    """Return the policy that explores in a slot, on the CPU, where answers are; its network is never used."""
    place = ActorSlot(slot, num_envs=1, actor_count=config.inference.simulators)
    (seed,) = np.random.SeedSequence([*seeds, slot]).generate_state(1)
    explores = build_policy(config.agent, spec, "cpu", int(seed), place)
    assert isinstance(explores, SplitPolicy)
    return explores


async def serve_simulators(
    config: InferenceConfig,
    spec: EnvSpec,
    policy: Policy,
    device: torch.device,
    forward: ForwardThread,
    fail: Callable[[BaseException], None],
    stop: threading.Event,
) -> SimulatorServicer | None:
    """Return the host of programs that play as clients; None if there are none, or `stop` was set before."""
    settings, each = config.inference, most_per_client(config.inference)
    if not settings.simulators:
        return None
    name = writer_name(config.run.name, settings.index)
    identity = open_identity(config, name)
    writer = await asyncio.to_thread(open_simulator_writer, config, spec, policy, name, identity.epoch, stop)
    if writer is None:
        return None
    seeds = await asyncio.to_thread(exploration_seeds, config, writer)
    simulators = Simulators(
        writer,
        forward,
        partial(
            Episode,
            spec,
            policy.recurrent_state_size,
            extra_columns_of(config.agent, spec),
            clips_rewards=config.env.clips_rewards,
        ),
        partial(make_explorer, config, spec, seeds),
        identity,
        SimulatorMetrics(),
        fail,
        slots=settings.simulators,
        slots_per_caller=each,
        grace_s=settings.simulator_grace_s,
        max_wait_s=settings.max_wait_ms / 1000.0,
        device=device,
        rng=np.random.default_rng(seeds),
        curves=open_curves(config, lambda: forward.newest),
    )
    client = ParamsClient(config.cluster.params, folder=config.run.params_folder)

    def fetch(version: int) -> Params:
        params = client.fetch(version)
        assert params is not None, "only a wait for a newer version brings none"
        return params

    return SimulatorServicer(
        simulators,
        spec,
        config.run.name,
        fetch,
        # twice: of clients that come back before their former call is known to have broken off
        max_calls=2 * settings.simulators,
        max_calls_per_caller=2 * each,
        timeout_s=settings.simulator_timeout_s,
    )
