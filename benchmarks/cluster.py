"""Env steps per second of a whole cluster against the number of its actors, with all services as `tidemill train` does.

Every size is a run of its own, in turns; the learner makes few updates, so that the actors have the cores to
themselves. The peer of N actors is N times the rate of one: `ratio` is the efficiency of adding actors. More actors
than cores share them.

    python -m benchmarks.cluster [--config configs/pong_dqn.yaml] [--actors 1 2 4 8] [--rounds 3] [--seconds 20]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.rows import Row, row, write
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig
from tidemill.replay.client import ReplayClient

_START_S = 120.0
_WARM_UP_S = 3.0
_STOP_S = 60.0
_UPDATES_PER_STEP = "0.001"


def main() -> None:
    """Measure and print; write benchmarks/results/cluster.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="configs/pong_dqn.yaml", help="run to take environment and agent from")
    parser.add_argument("--actors", nargs="+", type=int, default=[1, 2, 4, 8], help="numbers of actors, 1 first")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each size")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of one measurement")
    arguments = parser.parse_args()
    rates: dict[int, list[float]] = {count: [] for count in arguments.actors}
    for _ in range(arguments.rounds):
        for count in arguments.actors:
            rates[count].append(_rate(arguments.config, count, arguments.seconds))
    write("cluster", _rows(arguments.config, rates))


def _rows(path: str, rates: dict[int, list[float]]) -> list[Row]:
    first = min(rates)
    env = _load(path).env.id
    return [
        row(
            f"env steps/s, {env}, {count} actors on {os.cpu_count()} cores against {count} times one",
            "1/s",
            found,
            [rate * count / first for rate in rates[first]],
        )
        for count, found in rates.items()
    ]


def _load(path: str) -> RunConfig:
    return from_document(RunConfig, read_document(Path(path)))


def _rate(path: str, actors: int, seconds: float) -> float:
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        replay = f"unix://{folder}/r"
        options = {
            "--config": path,
            "--run.root": folder,
            "--run.name": "benchmark",
            "--launcher.actors": str(actors),
            "--launcher.view": "plain",
            "--replay.server.address": replay,
            "--learner.updates-per-env-step": _UPDATES_PER_STEP,
            "--table.error-buffer-updates": "1000",
            "--table.min-size": "1000",
            "--evaluator.start-env-steps": "1000000000",
        }
        words = [word for pair in options.items() for word in pair]
        command = [sys.executable, "-m", "services.launcher", "train", *words]
        train = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return _measure(replay, path, actors, seconds)
        finally:
            train.send_signal(signal.SIGTERM)
            train.wait(_STOP_S)


def _measure(replay: str, path: str, actors: int, seconds: float) -> float:
    """Return the rate once every actor has stored something."""
    config = _load(path)
    table, num_envs = config.table.name, config.env.num_envs
    with ReplayClient(replay) as client:
        client.wait_for_ready(_START_S)
        deadline = time.monotonic() + _START_S
        while _streams(client, table) < actors * num_envs:
            if time.monotonic() > deadline:
                raise SystemExit(f"the {actors} actors have not all stored something within {_START_S:g} s")
            time.sleep(0.2)
        time.sleep(_WARM_UP_S)
        first, started = client.describe_table(table).env_steps, time.monotonic()
        time.sleep(seconds)
        last, elapsed = client.describe_table(table).env_steps, time.monotonic() - started
        return (last - first) / elapsed


def _streams(client: ReplayClient, table: str) -> int:
    with contextlib.suppress(Exception):  # the learner creates the table
        return client.describe_table(table).streams
    return 0


if __name__ == "__main__":
    main()
