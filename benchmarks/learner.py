"""Gradient steps per second of a learner fed by a real replay service, against its updates alone from memory.

The learner is the real process, pinned to core 0; the replay service and the parameter server are real processes on the
other core. The table holds random transitions and nothing limits the rate. Rounds alternate (updates alone, learner),
so that a drift of the machine meets both. Rates are per second of processor time of the whole process, decoding, gRPC
and publishing included: on a core of its own that is the rate by the clock, but other programs do not disturb it. Also
reports which share of the time the learner waited for data.

    python -m benchmarks.learner [--configs configs/quickstart.yaml ...] [--rounds 3] [--seconds 10]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from services.learner.table import table_config
from tidemill import codec
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig
from tidemill.envs.make import spec_of
from tidemill.learner.client import LearnerClient
from tidemill.replay.append import Appender
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.build import build_agent
from tidemill.types import ColumnSpec, EnvSpec

_START_S = 120.0
_WARM_UP_S = 3.0
_BATCHES = 16  # different batches of the updates alone
_ALL_UPDATES = ("--learner.updates-per-env-step", "0")


def main() -> None:
    """Measure and print; write benchmarks/results/learner.json."""
    arguments = _arguments()
    rows = [row for config in arguments.configs for row in _measure(config, arguments)]
    for row in rows:
        print(json.dumps(row))
    document = {"machine": _machine(), "rows": rows}
    Path("benchmarks/results/learner.json").write_text(json.dumps(document, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--configs", nargs="+", default=["configs/quickstart.yaml"], help="runs to measure")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of measurements of each")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one measurement")
    parser.add_argument("--env-steps", type=int, default=100_000, help="transitions in the table")
    parser.add_argument("--alone", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        _update_alone(_load(arguments.alone), arguments.seconds)
        sys.exit(0)
    return arguments


def _load(path: str) -> RunConfig:
    return from_document(RunConfig, read_document(Path(path)))


def _measure(path: str, arguments: argparse.Namespace) -> list[dict[str, object]]:
    config = _load(path)
    alone, fed, waited = [], [], []
    with _servers(config, path, arguments.env_steps) as options:
        for _ in range(arguments.rounds):
            alone.append(_alone(path, arguments.seconds))
            rate, wait = _learner(path, options, arguments.seconds)
            fed.append(rate)
            waited.append(wait)
    name = f"{Path(path).stem}, batch {config.agent.batch_size}"
    return [
        _row(f"updates per core second, {name}, learner against updates alone", "1/s", fed, alone),
        _row(f"share of time waiting for data, {name}", "1", waited, None),
    ]


def _alone(path: str, seconds: float) -> float:
    """Return updates per core second from memory, in a process pinned to core 0."""
    command = [sys.executable, "-m", "benchmarks.learner", "--alone", path, "--seconds", str(seconds)]
    return float(subprocess.check_output(["taskset", "-c", "0", *command], text=True, timeout=seconds + _START_S))


def _update_alone(config: RunConfig, seconds: float) -> None:
    torch.set_num_threads(config.learner.threads)
    spec, rng = spec_of(config.env), np.random.default_rng(0)
    agent = build_agent(config.agent, spec, seed=1)
    table = table_config(config.table, config.learner, agent, spec, config.agent.batch_size)
    length, size = agent.window.length, config.agent.batch_size
    batches = []
    for _ in range(_BATCHES):
        index = np.arange(size)[:, None] * length + np.arange(length)
        arrays = agent.decode(_random_columns(table, size * length, rng), index)
        batches.append({name: torch.from_numpy(array) for name, array in arrays.items()})
    weight = torch.ones(size)
    for batch in batches:
        agent.update(batch, weight)
    started, updates, end = time.process_time(), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        agent.update(batches[updates % _BATCHES], weight)
        updates += 1
    print(updates / (time.process_time() - started))


def _learner(path: str, options: list[str], seconds: float) -> tuple[float, float]:
    """Return updates per core second of a real learner and the share of time it waited for data."""
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        address = f"unix://{folder}/l"
        own = ["--learner.server.address", address, "--run.root", folder, *_ALL_UPDATES]
        with _process("0", "learner", path, *own, *options) as pid, LearnerClient(address) as client:
            _wait_for_training(client)
            time.sleep(_WARM_UP_S)
            first, started_s = client.get_status().learner_steps, _processor_s(pid)
            time.sleep(seconds)
            last, ended_s = client.get_status(), _processor_s(pid)
            return (last.learner_steps - first) / (ended_s - started_s), last.wait_fraction


def _wait_for_training(client: LearnerClient) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):  # not listening yet
            if client.get_status().learner_steps:
                return
        time.sleep(0.1)
    raise SystemExit(f"the learner took no step within {_START_S:g} s")


@contextlib.contextmanager
def _servers(config: RunConfig, path: str, env_steps: int) -> Iterator[list[str]]:
    """Start replay service and parameter server, fill the table, and yield the options that name them."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-"))
        replay, params = f"unix://{folder}/r", f"unix://{folder}/p"
        stack.enter_context(_process("1", "replay", path, "--replay.server.address", replay))
        own = ["--paramserver.server.address", params, "--run.root", folder]
        stack.enter_context(_process("1", "paramserver", path, *own))
        _fill(config, replay, env_steps)
        yield ["--cluster.replay", replay, "--cluster.params", params]


def _fill(config: RunConfig, address: str, env_steps: int) -> None:
    """Append random streams, as one actor with one environment would."""
    spec, rng, length = spec_of(config.env), np.random.default_rng(0), config.table.chunk_length
    table = _table(config, spec)
    with ReplayClient(address) as client:
        client.wait_for_ready(_START_S)
        client.create_table(table)
    with Appender(address, "benchmark", 1, table.signature, [table.name], length) as appender:
        for first in range(0, env_steps, length):
            blocks = codec.encode(table.signature, _random_columns(table, length, rng))
            chunk = Chunk(0, first, length, length, 1, blocks)
            if not appender.append([chunk], [_items(first, length, table.max_item_steps)]):
                raise SystemExit("the replay service does not take what it is sent")
        appender.flush(_START_S)


def _table(config: RunConfig, spec: EnvSpec) -> TableConfig:
    agent = build_agent(config.agent, spec, seed=1)
    learner = dataclasses.replace(config.learner, updates_per_env_step=0.0)
    return table_config(config.table, learner, agent, spec, config.agent.batch_size)


def _items(first: int, length: int, item_steps: int) -> ItemBatch:
    offsets = np.arange(max(item_steps - 1 - first, 0), length)
    ones = np.ones(len(offsets))
    return ItemBatch(0, np.zeros_like(offsets), offsets, np.full_like(offsets, item_steps), ones)


def _random_columns(table: TableConfig, steps: int, rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
    return {column.name: _random_column(column, steps, rng) for column in table.signature}


def _random_column(column: ColumnSpec, steps: int, rng: np.random.Generator) -> NDArray[np.generic]:
    if column.dtype == "float32":
        return rng.uniform(-1, 1, (steps, *column.shape)).astype(np.float32)
    if column.dtype == "bool":
        return np.zeros((steps, *column.shape), np.bool_)
    picture = np.zeros((steps, *column.shape), column.dtype)  # an action, or a picture as compressible as Atari's
    picture.reshape(steps, -1)[:, :200] = rng.integers(0, 2, (steps, min(200, picture[0].size)))
    return picture


@contextlib.contextmanager
def _process(core: str, service: str, config: str, *options: str) -> Iterator[int]:
    command = ["taskset", "-c", core, sys.executable, "-m", f"services.{service}", "--config", config, *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process.pid  # taskset becomes the service
    finally:
        process.terminate()
        process.wait(20)


def _processor_s(pid: int) -> float:
    """Return the processor time a process has taken, in seconds (proc(5): utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _row(name: str, unit: str, ours: list[float], peer: list[float] | None) -> dict[str, object]:
    ratios = sorted(a / b for a, b in zip(ours, peer, strict=True)) if peer else []
    return {
        "name": name,
        "unit": unit,
        "ours": round(statistics.median(ours), 3),
        "peer": round(statistics.median(peer), 3) if peer else None,
        "ratio": round(statistics.median(ratios), 3) if ratios else None,
        "runs": len(ours),
        "spread": {
            "ours": [round(min(ours), 3), round(max(ours), 3)],
            "ratio": [round(ratio, 3) for ratio in ratios],
        },
    }


def _machine() -> dict[str, object]:
    return {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}


if __name__ == "__main__":
    main()
