"""Simulators as clients against an actor's own environments: steps per second, and time to an action.

The inference service is the real process, pinned to core 1 with the replay and parameter servers; the clients are
threads of this process on core 0, which compute nothing themselves. An actor's loop with as many environments that
compute nothing, on core 0, is measured in turns with them. A DQN's MLP acts; the table keeps everything and paces
nobody.

    python -m benchmarks.simulators [--clients 1 16 256] [--rounds 3] [--seconds 10] [--cores 0 1] [--dry-run]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.learner_feed import process
from benchmarks.rows import Row, row, write
from tidemill.acting.writer import open_writer
from tidemill.config.load import load_config, write_document
from tidemill.config.sections import ActorConfig, RunConfig
from tidemill.envs.make import spec_of
from tidemill.params.blob import pack
from tidemill.params.client import ParamsClient
from tidemill.params.version import ParamsMetadata, Precision
from tidemill.process import keep_freed_memory
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.policy_io import PolicyInputBuilder, step_columns
from tidemill.simulator.client import SimulatorClient
from tidemill.types import EnvSpec, signature_of

_WARM_UP_S = 1.0
_START_S = 120.0
_EPISODE = 200


def main() -> None:
    """Measure and print; write benchmarks/results/simulators.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 16, 256], help="simulators at a time")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of measurements")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one measurement")
    parser.add_argument("--cores", nargs=2, type=int, default=[0, 1], help="of the clients, and of the services")
    parser.add_argument("--dry-run", action="store_true", help="print, and write no file")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.cores[0]})
    torch.set_num_threads(1)
    keep_freed_memory()
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-")))
        config, spec = _started(folder, max(arguments.clients), str(arguments.cores[1]), stack)
        address = config.inference.server.address
        for count in arguments.clients:
            rates, own, waits = [], [], []
            for _ in range(arguments.rounds):
                rate, taken = _clients(address, spec, count, arguments.seconds)
                rates.append(rate)
                waits.append(taken)
                own.append(_actor(config, spec, count, arguments.seconds))
            of = f"{count} clients"
            rows.append(row(f"steps/s of clients against an actor's loop, {of}", "1/s", rates, own))
            for share in (50, 99):
                rows.append(row(f"time to an action, p{share}, {of}", "ms", [np.percentile(w, share) for w in waits]))
    if not arguments.dry_run:
        write("simulators", rows)
        return
    for each in rows:
        print(json.dumps(each))


def _started(folder: Path, simulators: int, core: str, stack: contextlib.ExitStack) -> tuple[RunConfig, EnvSpec]:
    """Start the services with a table and parameters; return the settings."""
    replay, params, inference = (f"unix://{folder}/{letter}" for letter in "rpi")
    document = {
        "run": {"name": "bench", "root": str(folder)},
        "env": {"id": "CartPole-v1"},
        "agent": {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [128, 128], "dueling": False},
        "table": {"max_items": 100_000},
        "cluster": {"replay": [replay], "params": params},
        "inference": {"simulators": simulators, "server": {"address": inference}},
    }
    config = load_config(document)
    write_document(config, folder / "run.yaml")
    spec = spec_of(config.env)
    path = str(folder / "run.yaml")
    stack.enter_context(process(core, "tidemill.services.replay", path, "--replay.server.address", replay))
    stack.enter_context(process(core, "tidemill.services.paramserver", path, "--paramserver.server.address", params))
    window = config.agent.window(spec.frame_stack)
    table = TableConfig(
        config.table.name, signature_of(spec), SelectorConfig(SelectorKind.UNIFORM), 100_000, window.length
    )
    with ReplayClient(replay) as client:
        client.wait_for_ready(_START_S)
        client.create_table(table)
    state = {name: tensor.numpy() for name, tensor in build_agent(config.agent, spec, seed=1).policy_state().items()}
    with ParamsClient(params) as publisher:
        fencing_token = publisher.acquire_fencing_token("benchmark", connect_timeout_s=_START_S).fencing_token
        blobs = {Precision.FULL: pack(state)}
        publisher.publish(blobs, ParamsMetadata(), fencing_token=fencing_token, base_version=0)
    stack.enter_context(process(core, "tidemill.services.inference", path))
    with SimulatorClient(inference, spec, timeout_s=_START_S) as client:  # waits until it serves
        client.begin(np.zeros(spec.observation_shape, spec.observation_dtype))
    return config, spec


def _clients(address: str, spec: EnvSpec, count: int, seconds: float) -> tuple[float, list[float]]:
    """Return the steps per second of so many clients, and the milliseconds that each step took."""
    observation = np.zeros(spec.observation_shape, spec.observation_dtype)
    begun, ended = threading.Event(), threading.Event()
    taken: list[list[float]] = [[] for _ in range(count)]

    def play(place: int) -> None:
        with SimulatorClient(address, spec, timeout_s=_START_S) as client:
            while not ended.is_set():
                client.begin(observation)
                for step in range(1, _EPISODE + 1):
                    before_s = time.perf_counter()
                    client.step(observation, 1.0, truncated=step == _EPISODE)
                    if begun.is_set():
                        taken[place].append(1e3 * (time.perf_counter() - before_s))
                    if ended.is_set():
                        return

    threads = [threading.Thread(target=play, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(_WARM_UP_S + 0.02 * count)
    begun.set()
    time.sleep(seconds)
    ended.set()
    found = [value for each in taken for value in list(each)]
    for thread in threads:
        thread.join()
    return len(found) / seconds, found


def _actor(config: RunConfig, spec: EnvSpec, count: int, seconds: float) -> float:
    """Return the steps per second of an actor's loop with so many environments that compute nothing."""
    own = ActorConfig(run=config.run, cluster=config.cluster, env=config.env, agent=config.agent, table=config.table)
    policy = build_policy(config.agent, spec, slot=ActorSlot(num_envs=count))
    stop = threading.Event()
    writer = open_writer(
        own, f"actor-{time.time_ns()}", 1, policy.initial_priority, stop, num_envs=count, max_in_flight_chunks=2
    )
    assert writer is not None
    builder = PolicyInputBuilder(count, spec, policy.recurrent_state_size)
    observation = np.zeros((count, *spec.observation_shape), spec.observation_dtype)
    nothing, reward, is_first = np.zeros(count, np.bool_), np.ones(count, np.float32), np.ones(count, np.bool_)
    steps, begun_s = 0, float("inf")
    with contextlib.closing(writer):
        started_s = time.perf_counter()
        while (now_s := time.perf_counter()) < begun_s + seconds:
            if begun_s == float("inf") and now_s > started_s + _WARM_UP_S:
                begun_s, steps = now_s, 0
            seen = builder.build(observation, is_first, reward)
            output = policy.act(seen, 0)
            builder.record(output)
            columns = step_columns(
                output, observation, is_first, None, spec, reward=reward, terminated=nothing, truncated=nothing
            )
            beside = {**output.priority_inputs, "is_reset_step": nothing}
            writer.append(columns, beside=beside)
            writer.push()
            is_first = nothing
            steps += count
    return steps / seconds


if __name__ == "__main__":
    main()
