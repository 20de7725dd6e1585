"""Env steps per second of a whole cluster against the number of its actors, with all services as `tidemill train` does.

Every size is a separate run, in turns; the learner makes few updates, so that the actors have the cores to
themselves. The peer of N actors is N times the rate of one: `ratio` is the efficiency of adding actors. More actors
than cores share them.

    python -m benchmarks.cluster [--config configs/pong_dqn.yaml] [--actors 1 2 4 8] [--rounds 3] [--seconds 20]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.rows import Row, row, write
from benchmarks.running_cluster import running_cluster
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig

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
    env = from_document(RunConfig, read_document(Path(path))).env.id
    return [
        row(
            f"env steps/s, {env}, {count} actors on {os.cpu_count()} cores against {count} times one",
            "1/s",
            found,
            [rate * count / first for rate in rates[first]],
        )
        for count, found in rates.items()
    ]


def _rate(path: str, actors: int, seconds: float) -> float:
    with running_cluster(path, actors, {"--learner.updates-per-env-step": _UPDATES_PER_STEP}) as cluster:
        return cluster.work_in(seconds).env_steps_per_s


if __name__ == "__main__":
    main()
