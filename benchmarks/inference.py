"""Acting by an inference service against acting by the own network: rate, and what a step waits longer, on two cores.

The service is the real process, pinned to core 1 with the parameter server; the actor's side is this process, pinned to
core 0: no environment is stepped, so that the difference is the network's place alone. Local and remote passes are
measured in turns. Beside them is the arithmetic for a GPU: multiply-adds of a pass, and bytes of a step on the wire.

    python -m benchmarks.inference [--networks nature impala] [--envs 1 8 32] [--rounds 3] [--seconds 10] [--cores 0 1]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.learner_feed import process, publish
from benchmarks.rows import Row, row, write
from tidemill.config.load import load_config, write_document
from tidemill.config.sections import RunConfig
from tidemill.envs.make import spec_of
from tidemill.inference.client import InferenceClient
from tidemill.inference.wire import Answer, Opening, pack_answer, pack_step
from tidemill.process import keep_freed_memory
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.interface import SplitPolicy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.policy_io import PolicyInput, PolicyInputBuilder
from tidemill.types import EnvSpec

_START_S = 120.0
_WARM_UP = 20


def main() -> None:
    """Measure and print; write benchmarks/results/inference.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["nature", "impala"], help="torsos of a DQN on Pong")
    parser.add_argument("--envs", nargs="+", type=int, default=[1, 8, 32], help="environments of the actor")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of measurements")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one measurement")
    parser.add_argument("--cores", nargs=2, type=int, default=[0, 1], help="of the actor's side, and of the service")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.cores[0]})
    torch.set_num_threads(1)
    keep_freed_memory()  # as an actor does: large passes otherwise spend their time on page faults
    rows: list[Row] = []
    for network in arguments.networks:
        rows += _measure(network, arguments)
    write("inference", rows)


def _measure(network: str, arguments: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    core = str(arguments.cores[1])
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-")))
        params, inference = f"unix://{folder}/p", f"unix://{folder}/i"
        config = load_config({"env": {"id": "ALE/Pong-v5"}, "agent": {"algorithm": "dqn", "network": network}})
        cluster = dataclasses.replace(config.cluster, params=params)
        write_document(config := dataclasses.replace(config, cluster=cluster), folder / "run.yaml")
        path, own = str(folder / "run.yaml"), ["--inference.server.address", inference]
        places = ["--paramserver.server.address", params, "--run.root", str(folder)]
        stack.enter_context(process(core, "tidemill.services.paramserver", path, *places))
        stack.enter_context(process(core, "tidemill.services.inference", path, *own))
        spec = spec_of(config.env)
        publish(build_agent(config.agent, spec, seed=1), params)
        for count in arguments.envs:
            local, remote = [], []
            for _ in range(arguments.rounds):
                local.append(_local(config, spec, count, arguments.seconds))
                remote.append(_remote(spec, inference, count, arguments.seconds))
            of = f"{network}, {count} environments"
            rates = [count / step_s for step_s in remote], [count / step_s for step_s in local]
            rows.append(row(f"env steps/s by the service against the own network, {of}", "1/s", *rates))
            added = [1e3 * (a - b) for a, b in zip(remote, local, strict=True)]
            rows.append(row(f"time of a step, by the service less by the own network, {of}", "ms", added))
            rows.append(
                row(f"bytes of a step and its answer on the wire, {of}", "bytes", [_wire_bytes(config, spec, count)])
            )
        rows.append(
            row(f"multiply-adds of one environment's pass, {network}", "million", [_multiply_adds(config, spec) / 1e6])
        )
    return rows


def _local(config: RunConfig, spec: EnvSpec, count: int, seconds: float) -> float:
    """Return the seconds of a pass through the actor's own network, as an actor builds it."""
    slot = ActorSlot(num_envs=count)
    policy = build_policy(config.agent, spec, seed=1, slot=slot, precision=config.actor.precision)
    assert isinstance(policy, SplitPolicy)
    return _seconds_of_a_step(policy.forward, spec, count, seconds)


def _remote(spec: EnvSpec, address: str, count: int, seconds: float) -> float:
    """Return the seconds from a step to the service's answer."""
    with contextlib.closing(InferenceClient([address], Opening("dqn", count, spec))) as client:
        deadline = time.monotonic() + _START_S
        while not client.is_connected():
            if time.monotonic() > deadline:
                raise SystemExit(f"the service did not answer within {_START_S:g} s")
            time.sleep(0.1)
        return _seconds_of_a_step(client.ask, spec, count, seconds)


def _seconds_of_a_step(ask: Callable[[PolicyInput], object], spec: EnvSpec, count: int, seconds: float) -> float:
    """Return the median: others on the machine make single steps slow."""
    inputs, taken = _Inputs(spec, count), []
    for _ in range(_WARM_UP):
        ask(inputs.next())
    until = time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        seen = inputs.next()
        started = time.perf_counter()
        ask(seen)
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))


class _Inputs:
    """Random images of environments whose episodes have begun."""

    def __init__(self, spec: EnvSpec, count: int) -> None:
        self._builder = PolicyInputBuilder(count, spec, 0)
        shape = (16, count, *spec.observation_shape)
        self._images = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
        self._step, self._count = 0, count

    def next(self) -> PolicyInput:
        """Return the next input."""
        self._step += 1
        is_first = np.full(self._count, self._step == 1)
        return self._builder.build(self._images[self._step % len(self._images)], is_first)


def _wire_bytes(config: RunConfig, spec: EnvSpec, count: int) -> float:
    seen = _Inputs(spec, count).next()
    policy = build_policy(config.agent, spec, slot=ActorSlot(num_envs=count))
    assert isinstance(policy, SplitPolicy)
    arrays = {name: tensor.numpy() for name, tensor in policy.forward(seen).items()}
    answer = pack_answer(Answer(1, 0, 0, arrays))
    return pack_step(seen, spec.frame_stack, whole=False).ByteSize() + answer.ByteSize()


def _multiply_adds(config: RunConfig, spec: EnvSpec) -> float:
    """Return them for one environment, as torch counts a pass's operations, two for each."""
    policy = build_policy(config.agent, spec)
    assert isinstance(policy, SplitPolicy)
    seen = _Inputs(spec, 1).next()
    with FlopCounterMode(display=False) as counter:
        policy.forward(seen)
    return float(counter.get_total_flops()) / 2


if __name__ == "__main__":
    main()
