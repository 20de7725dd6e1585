"""The simulator service inside the test's process, over a real replay server, with parameters that the test sets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from tests.support.free_ports import free_address
from tests.support.inference_service import FixedParams, state_of
from tests.support.waiting import WAIT_S
from tidemill.config.run import ClusterSettings, RunSettings
from tidemill.config.sections import InferenceConfig
from tidemill.config.services import InferenceSettings
from tidemill.config.table import TableSettings
from tidemill.params.version import Params
from tidemill.replay.client import ReplayClient
from tidemill.replay.codec import decode
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.replay.writing.writer import ReplayWriter
from tidemill.rl.agents.build import build_policy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.settings.registry import AgentConfig, extra_columns_of
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.settings import ServerSettings
from tidemill.services.inference.batcher import Batcher
from tidemill.services.inference.episode import Episode
from tidemill.services.inference.forward_thread import ForwardThread
from tidemill.services.inference.metrics import Metrics, SimulatorCurves, SimulatorMetrics
from tidemill.services.inference.open_simulators import exploration_seeds, make_explorer, open_simulator_writer
from tidemill.services.inference.resume_token import Identity
from tidemill.services.inference.simulator_servicer import SimulatorServicer
from tidemill.services.inference.simulators import Simulators
from tidemill.types import EnvSpec, signature_of

TABLE, CHUNK = "t", 4


@dataclass(frozen=True)
class LocalSimulators:
    """The service, with its parts at hand."""

    address: str
    writer: ReplayWriter
    registry: CollectorRegistry
    loop: asyncio.AbstractEventLoop
    errors: list[BaseException]

    def metric(self, name: str, **labels: str) -> float:
        """Return a metric of the service, 0 when it was never touched."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def flush(self) -> None:
        """Send every row that is complete to the replay server."""
        asyncio.run_coroutine_threadsafe(self.writer.flush_async(WAIT_S), self.loop).result(WAIT_S)


def create_table(address: str, config: AgentConfig, spec: EnvSpec, **settings: Any) -> TableConfig:  # noqa: ANN401
    """Create the table of an algorithm; settings go to `TableConfig`."""
    window = config.window(spec.frame_stack)
    policy = build_policy(config, spec)
    signature = (*signature_of(spec), *extra_columns_of(config, spec))
    table = TableConfig(
        TABLE,
        signature,
        settings.pop("sampler", SelectorConfig(SelectorKind.UNIFORM)),
        max_items=10_000,
        max_item_steps=window.length,
        payload_bytes=4 * policy.recurrent_state_size,
        **settings,
    )
    with ReplayClient(address) as client:
        client.create_table(table)
    return table


@contextmanager
def local_simulators(
    replay: str | tuple[str, ...],
    config: AgentConfig,
    spec: EnvSpec,
    *,
    address: str = "",
    slots: int = 4,
    slots_per_caller: int = 4,
    grace_s: float = 60.0,
    timeout_s: float = 60.0,
    max_wait_s: float = 0.002,
    identity: Path | None = None,
    sampler: str = "uniform",
    name: str = "simulators",
    index: int = 0,
    run: Path | None = None,
    versions: Mapping[int, Params] | None = None,
    env_steps: int = 0,
) -> Iterator[LocalSimulators]:
    """Serve simulators, whose steps a table of the replay servers at `replay` takes; curves go to a run's folder.

    `versions` are those that can be evaluated. The newest was published after `env_steps` decisions of the cluster.
    """
    params = FixedParams()
    params.set(state_of(config, spec), number=3, env_steps=env_steps)
    policy, errors, registry = build_policy(config, spec, slot=ActorSlot(num_envs=64)), list[BaseException](), None
    registry = CollectorRegistry()
    watcher: Any = params
    evaluating = build_policy(config, spec)
    forward = ForwardThread(policy, watcher, Batcher(64, max_wait_s), Metrics(registry), errors.append, evaluating)
    kept = Identity(identity)
    settings = InferenceConfig(
        run=RunSettings(continued_from=0),  # asks no parameter server
        agent=config,
        inference=InferenceSettings(index=index, simulators=slots),
        cluster=ClusterSettings(replay=(replay,) if isinstance(replay, str) else replay),
        table=TableSettings(name=TABLE, chunk_length=CHUNK, sampler=sampler),  # type: ignore[arg-type]
    )
    stop = threading.Event()
    writer = open_simulator_writer(settings, spec, policy, name, kept.epoch, stop)
    assert writer is not None

    seeds = exploration_seeds(settings, writer)
    simulators = Simulators(
        writer,
        forward,
        partial(Episode, spec, policy.recurrent_state_size, extra_columns_of(config, spec)),
        partial(make_explorer, settings, spec, seeds),
        kept,
        SimulatorMetrics(registry),
        errors.append,
        slots=slots,
        slots_per_caller=slots_per_caller,
        grace_s=grace_s,
        max_wait_s=max_wait_s,
        device=torch.device("cpu"),
        rng=np.random.default_rng(seeds),
        curves=None if run is None else SimulatorCurves(run, "inference-0", every_s=0.0),
    )
    try:
        with BackgroundServer("inference", ServerSettings(address or free_address(), grace_s=0.2)) as background:
            fetch = (versions or {}).__getitem__
            servicer = SimulatorServicer(
                simulators,
                spec,
                "test",
                fetch,
                max_calls=2 * slots,
                max_calls_per_caller=2 * slots_per_caller,
                timeout_s=timeout_s,
            )
            servicer.add_to(background.server)
            yield LocalSimulators(background.start(), writer, registry, background.loop, errors)
            background.loop.call_soon_threadsafe(servicer.close)
    finally:
        stop.set()
        writer.close()
        forward.close()


def stored_items(address: str, table: TableConfig) -> dict[str, NDArray[Any]]:
    """Return the columns of all items of a table, each [items, steps, ...]; of shorter ones the first step repeats."""
    with ReplayClient(address) as client:
        count = client.describe_table(TABLE).items
    if not count:
        return {}
    with ReplaySampler([address], table, count, max_in_flight_batches=1, without_replacement=True) as stream:
        batch = stream.take(WAIT_S)
        assert batch is not None
        decoded = decode(table.signature, batch, table.max_item_steps)
        return {name: values[decoded.index] for name, values in decoded.columns.items()}
