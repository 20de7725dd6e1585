"""Updates per second of a learner fed by a real replay service, against its updates alone from memory.

The learner is the real process, pinned to one core unless it has a GPU; the replay service and the parameter server are
real processes on another. The table holds made-up transitions and nothing limits the rate. Rounds alternate (updates
alone, learner), so that a drift of the machine meets both. On a CPU rates are per second of processor time of the whole
process, decoding, gRPC and publishing included: the rate by the clock on a core without other work, but undisturbed by
other programs. On a GPU they are by the clock. Also reports what the learner's threads spent their time on.

    python -m benchmarks.learner [--cases nature_dueling_dqn_32 ...] [--rounds 3] [--seconds 10]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.learner_cases import CASES
from benchmarks.learner_feed import START_S, cores, process, random_columns, servers
from benchmarks.processes import free_port, processor_s
from benchmarks.rows import Row, row, write
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig
from tidemill.envs.make import spec_of
from tidemill.learner.client import LearnerClient
from tidemill.process import keep_freed_memory
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.capture_trial import with_chosen_compile
from tidemill.rl.agents.interface import Agent
from tidemill.rl.settings.registry import stored_columns
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.services.learner.data.table import table_config

_WARM_UP_S = 3.0
_BATCHES = 8  # different batches of the updates alone
_STAGES = {
    "waiting for data": ("tidemill_learner_wait_seconds_total", 'what="data"'),
    "decoding": ("tidemill_learner_stage_seconds_total", 'stage="decode"'),
    "copying to the device": ("tidemill_learner_stage_seconds_total", 'stage="copy"'),
    "updating": ("tidemill_learner_stage_seconds_total", 'stage="update"'),
}


def main() -> None:
    """Measure and print; write benchmarks/results/learner.json."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        paths = {name: CASES[name].write(Path(folder)) for name in arguments.cases}
        paths |= {Path(path).stem: path for path in arguments.configs}
        rows = [each for name, path in paths.items() for each in _measure(name, path, arguments)]
        rows += [each for name, path in paths.items() for each in _beside_sb3(name, path, arguments)]
        write("learner", rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES), help="networks and batch sizes")
    parser.add_argument("--configs", nargs="*", default=["configs/quickstart.yaml"], help="runs to measure besides")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of measurements of each")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one measurement")
    parser.add_argument("--env-steps", type=int, default=20_000, help="transitions in the table")
    parser.add_argument("--sb3", default="", help="folder that Stable-Baselines3 is installed in, to compare with")
    parser.add_argument("--alone", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        print(_update_alone(_load(arguments.alone), arguments.seconds))
        sys.exit(0)
    return arguments


def _load(path: str) -> RunConfig:
    return from_document(RunConfig, read_document(Path(path)))


def _measure(name: str, path: str, arguments: argparse.Namespace) -> list[Row]:
    config = _load(path)
    alone, fed = [], []
    shares: dict[str, list[float]] = {stage: [] for stage in _STAGES}
    with servers(config, path, arguments.env_steps) as options:
        for _ in range(arguments.rounds):
            alone.append(_alone(path, arguments.seconds))
            rate, spent = learner_rate(path, options, arguments.seconds)
            fed.append(rate)
            for stage, share in spent.items():
                shares[stage].append(share)
    what = f"{name}, batch {config.agent.batch_size}"
    per = "s" if torch.cuda.is_available() else "core second"
    return [
        row(f"updates per {per}, {what}, learner over gRPC against updates from memory", "1/s", fed, alone),
        *(row(f"share of time {stage}, {what}", "1", found) for stage, found in shares.items()),
    ]


def _beside_sb3(name: str, path: str, arguments: argparse.Namespace) -> list[Row]:
    """Return SAC's updates from memory beside Stable-Baselines3's, in turns; no row for other networks or on a GPU."""
    config = _load(path).agent
    if not arguments.sb3 or not isinstance(config, SACConfig) or torch.cuda.is_available():  # both are of a core
        return []
    hidden = [str(size) for size in config.hidden_sizes]
    command = [sys.executable, "-m", "benchmarks.sac_peer", "--hidden", *hidden, "--batch", str(config.batch_size)]
    command = ["taskset", "-c", cores()[0], *command, "--seconds", str(arguments.seconds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": arguments.sb3}
    ours, theirs = [], []
    for _ in range(arguments.rounds):
        ours.append(_alone(path, arguments.seconds))
        said = subprocess.check_output(command, text=True, env=environment, timeout=arguments.seconds + START_S)
        theirs.append(float(said))
    what = f"{name}, batch {config.batch_size}"
    return [
        row(
            f"SAC updates per core second, {what}, from memory against Stable-Baselines3's train()", "1/s", ours, theirs
        )
    ]


def _alone(path: str, seconds: float) -> float:
    """Return the rate of updates from memory, in a process pinned to one core unless a GPU makes them."""
    pinned = [] if torch.cuda.is_available() else ["taskset", "-c", cores()[0]]
    command = [*pinned, sys.executable, "-m", "benchmarks.learner", "--alone", path, "--seconds", str(seconds)]
    return float(subprocess.check_output(command, text=True, timeout=seconds + START_S))


def _update_alone(config: RunConfig, seconds: float) -> float:
    torch.set_num_threads(1)
    keep_freed_memory()  # as the learner does
    on_gpu, spec, size = torch.cuda.is_available(), spec_of(config.env), config.agent.batch_size
    device = torch.device("cuda:0" if on_gpu else "cpu")
    torch.backends.cudnn.benchmark = on_gpu  # as in the learner, as is `agent.compile`
    agent = build_agent(with_chosen_compile(config.agent, spec, device, size), spec, str(device), seed=1)
    batches, weight = batches_in_memory(config, agent, device), torch.ones(size, device=device)
    for batch in batches if on_gpu else batches[:2]:  # a GPU's updates are recorded meanwhile
        agent.update(batch, weight)
    finish: Callable[[], object] = torch.cuda.synchronize if on_gpu else lambda: None
    clock: Callable[[], float] = time.monotonic if on_gpu else time.process_time
    finish()
    started, updates, end = clock(), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        agent.update(batches[updates % _BATCHES], weight)
        updates += 1
    finish()
    return updates / (clock() - started)


def batches_in_memory(config: RunConfig, agent: Agent, device: torch.device) -> list[dict[str, Tensor]]:
    """Return batches of made-up transitions, as a learner decodes them, on the device."""
    spec, rng, size = spec_of(config.env), np.random.default_rng(0), config.agent.batch_size
    table = table_config(config.table, config.learner, agent, stored_columns(config.agent, spec), size)
    length = agent.window.length
    index = np.arange(size)[:, None] * length + np.arange(length)
    decoded = [agent.decode(random_columns(table, size * length, rng), index) for _ in range(_BATCHES)]
    return [{name: torch.from_numpy(array).to(device) for name, array in arrays.items()} for arrays in decoded]


def learner_rate(path: str, options: list[str], seconds: float) -> tuple[float, dict[str, float]]:
    """Return the rate of a real learner, and the share of the time that each stage took; stages run beside another."""
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        address, metrics = f"unix://{folder}/l", f"127.0.0.1:{free_port()}"
        own = ["--learner.server.address", address, "--learner.server.metrics-address", metrics, "--run.root", folder]
        own += ["--learner.updates-per-env-step", "0"]
        # On a GPU it launches, decodes and waits at the same time.
        core = None if torch.cuda.is_available() else cores()[0]
        with process(core, "tidemill.services.learner", path, *own, *options) as pid, LearnerClient(address) as client:
            _wait_for_training(client)
            time.sleep(_WARM_UP_S)
            before = _Reading.of(client, metrics, pid)
            time.sleep(seconds)
            after = _Reading.of(client, metrics, pid)
            elapsed, used = after.now - before.now, after.processor_s - before.processor_s
            rate = (after.steps - before.steps) / (elapsed if torch.cuda.is_available() else used)
            return rate, {stage: (after.spent[stage] - before.spent[stage]) / elapsed for stage in _STAGES}


@dataclass(frozen=True)
class _Reading:
    """Counts of a learner so far."""

    steps: int
    spent: dict[str, float]
    processor_s: float
    now: float

    @classmethod
    def of(cls, client: LearnerClient, metrics: str, pid: int) -> _Reading:
        """Read status, metrics and processor time of a learner, one right after the other."""
        return cls(client.get_status().learner_steps, _spent(metrics), processor_s(pid), time.monotonic())


def _spent(address: str) -> dict[str, float]:
    """Return the seconds of each stage so far, from /metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return {
        stage: sum(float(line.rpartition(" ")[2]) for line in lines if _is(line, *of)) for stage, of in _STAGES.items()
    }


def _is(line: str, name: str, label: str) -> bool:
    """True if a line of /metrics is a sample of a metric with a label."""
    return line.startswith(f"{name}{{") and label in line


def _wait_for_training(client: LearnerClient) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):  # not listening yet
            if client.get_status().learner_steps:
                return
        time.sleep(0.1)
    raise SystemExit(f"the learner took no step within {START_S:g} s")


if __name__ == "__main__":
    main()
