"""A replay service filled with transitions, and a parameter server: what a learner needs around it.

Frames are those of five Atari games (`replay_frames.py`), other observations are made up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.replay_frames import cached_steps
from tidemill import linux
from tidemill.config.sections import RunConfig
from tidemill.envs.make import spec_of
from tidemill.params.blob import half, pack
from tidemill.params.client import ParamsClient
from tidemill.params.version import ParamsMetadata, Precision
from tidemill.replay import codec
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableConfig
from tidemill.replay.writing.appender import StreamAppender
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.interface import Agent
from tidemill.rl.settings.registry import stored_columns
from tidemill.services.learner.data.table import table_config
from tidemill.types import ColumnSpec, EnvSpec

START_S = 120.0
"""Longest a process may take to start, in seconds."""


def cores() -> tuple[str, str]:
    """Return the numbers of the first two processors that this process may use, or of the only one twice."""
    first, *others = sorted(linux.allowed_processors())
    return str(first), str(others[0] if others else first)


@contextlib.contextmanager
def servers(config: RunConfig, path: str, env_steps: int) -> Iterator[list[str]]:
    """Start replay service and parameter server on one core, fill the table, and yield the options that name them."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-"))
        replay, params = f"unix://{folder}/r", f"unix://{folder}/p"
        stack.enter_context(process(cores()[1], "tidemill.services.replay", path, "--replay.server.address", replay))
        own = ["--paramserver.server.address", params, "--run.root", folder]
        stack.enter_context(process(cores()[1], "tidemill.services.paramserver", path, *own))
        fill(config, replay, env_steps)
        yield ["--cluster.replay", replay, "--cluster.params", params]


def fill(config: RunConfig, address: str, env_steps: int) -> None:
    """Append streams, as one actor with one environment would."""
    spec, length = spec_of(config.env), config.table.chunk_length
    table = _table(config, spec)
    chunks = [codec.encode(table.signature, columns) for columns in chunks_of_steps(table, spec, env_steps, length)]
    with ReplayClient(address) as client:
        client.wait_for_ready(START_S)
        client.create_table(table)
    with StreamAppender(address, "benchmark", 1, table.signature, [table.name], length) as appender:
        for first, blocks in zip(range(0, env_steps, length), itertools.cycle(chunks)):
            chunk = Chunk(0, first, length, length, 1, blocks)
            if not appender.append([chunk], [_items(first, length, table.max_item_steps)]):
                raise SystemExit("the replay service does not take what it is sent")
        appender.flush(START_S)


def chunks_of_steps(
    table: TableConfig, spec: EnvSpec, env_steps: int, length: int
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the columns of different chunks, stream by stream: as many as are needed, or as were recorded of games."""
    rng = np.random.default_rng(0)
    if (spec.observation_shape, spec.observation_dtype) != ((84, 84), "uint8"):
        for _ in range(0, env_steps, length):
            yield random_columns(table, length, rng)
        return
    steps = cached_steps()
    recorded = {**vars(steps), "action": steps.action % max(spec.num_actions, 1)}
    places = itertools.product(range(len(steps.action)), range(0, steps.action.shape[1] - length + 1, length))
    for env, first in itertools.islice(places, -(-env_steps // length)):
        seen = {name: array[env, first : first + length] for name, array in recorded.items()}
        columns = random_columns(table, length, rng)
        yield columns | {column.name: seen[column.name] for column in table.signature if column.name in seen}


def random_columns(table: TableConfig, steps: int, rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
    """Return made-up steps; pictures are as compressible as Atari's."""
    return {column.name: _random_column(column, steps, rng) for column in table.signature}


@contextlib.contextmanager
def process(core: str | None, module: str, config: str, *options: str, **variables: str) -> Iterator[int]:
    """Run a service on one core (None: on all), with some environment variables; yield its process id and end it."""
    pinned = [] if core is None else ["taskset", "-c", core]
    command = [*pinned, sys.executable, "-m", module, "--config", config, *options]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"} | variables)
    try:
        yield child.pid  # taskset becomes the service
    finally:
        child.terminate()
        child.wait(60)


def publish(agent: Agent, address: str) -> None:
    """Publish an agent's parameters, as its learner would."""
    state = {name: tensor.numpy() for name, tensor in agent.policy_state().items()}
    blobs = {Precision.FULL: pack(state)}
    if (small := half(state)) is not None:
        blobs[Precision.HALF] = pack(small)
    with ParamsClient(address) as publisher:
        fencing_token = publisher.acquire_fencing_token("benchmark", connect_timeout_s=START_S).fencing_token
        publisher.publish(blobs, ParamsMetadata(), fencing_token=fencing_token, base_version=0)


def _table(config: RunConfig, spec: EnvSpec) -> TableConfig:
    agent = build_agent(config.agent, spec, seed=1)
    learner = dataclasses.replace(config.learner, updates_per_env_step=0.0)
    return table_config(config.table, learner, agent, stored_columns(config.agent, spec), config.agent.batch_size)


def _items(first: int, length: int, item_steps: int) -> ItemBatch:
    offsets = np.arange(max(item_steps - 1 - first, 0), length)
    ones = np.ones(len(offsets))
    return ItemBatch(0, np.zeros_like(offsets), offsets, np.full_like(offsets, item_steps), ones)


def _random_column(column: ColumnSpec, steps: int, rng: np.random.Generator) -> NDArray[np.generic]:
    if column.dtype == "float32":
        return rng.uniform(-1, 1, (steps, *column.shape)).astype(np.float32)
    if column.dtype == "bool":
        return np.zeros((steps, *column.shape), np.bool_)
    picture = np.zeros((steps, *column.shape), column.dtype)  # an action, or a picture
    picture.reshape(steps, -1)[:, :200] = rng.integers(0, 2, (steps, min(200, picture[0].size)))
    return picture
