"""Env steps and updates per second of a whole cluster against the number of its actors, started by `tidemill train`.

Every size is a separate run, in turns; the learner makes few updates, so that the actors have the cores to
themselves. The peer of N actors is N times the rate of one: `ratio` is the efficiency of adding actors. More actors
than cores share them. The updates of the same runs follow: what the actors leave the learner of the cores.

    python -m benchmarks.cluster [--config configs/pong_dqn.yaml] [--actors 1 2 4 8 16] [--rounds 3] [--seconds 20]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.rows import Row, row, write
from benchmarks.running_cluster import Work, running_cluster
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig

_UPDATES_PER_STEP = "0.001"


def main() -> None:
    """Measure and print; write benchmarks/results/cluster.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="configs/pong_dqn.yaml", help="run to take environment and agent from")
    parser.add_argument("--actors", nargs="+", type=int, default=[1, 2, 4, 8, 16], help="numbers of actors, 1 first")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each size")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of one measurement")
    arguments = parser.parse_args()
    works: dict[int, list[Work]] = {count: [] for count in arguments.actors}
    for _ in range(arguments.rounds):
        for count in arguments.actors:
            works[count].append(_work(arguments.config, count, arguments.seconds))
    write("cluster", _rows(arguments.config, works))


def _rows(path: str, works: dict[int, list[Work]]) -> list[Row]:
    rates = {count: [work.env_steps_per_s for work in found] for count, found in works.items()}
    first = min(rates)
    env = from_document(RunConfig, read_document(Path(path))).env.id
    cores = os.cpu_count()
    steps = [
        row(
            f"env steps/s, {env}, {count} actors on {cores} cores against {count} times one",
            "1/s",
            found,
            [rate * count / first for rate in rates[first]],
        )
        for count, found in rates.items()
    ]
    updates = [
        row(f"updates/s, {env}, {count} actors on {cores} cores", "1/s", [_updates_per_s(work) for work in found])
        for count, found in works.items()
    ]
    return steps + updates


def _updates_per_s(work: Work) -> float:
    return work.learner_steps / work.seconds


def _work(path: str, actors: int, seconds: float) -> Work:
    with running_cluster(path, actors, {"--learner.updates-per-env-step": _UPDATES_PER_STEP}) as cluster:
        return cluster.work_in(seconds)


if __name__ == "__main__":
    main()
