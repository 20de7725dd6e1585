"""Processor time that the work of a whole cluster costs, against the number of actors, of shards, and the batch.

Each case is a separate run with all services, in turns, and differs from the first in one thing: 2 actors, one shard,
batch 32. For every environment step the learner is allowed the same number of transitions to learn from, so a large
batch means few updates; how many it took in a short window still varies, so its cost is given for 1,000 of those too.
`peer` is the first case: a ratio of 1 says that the cost grows with the work alone.

    python -m benchmarks.cluster_cost [--config configs/pong_dqn.yaml] [--rounds 3] [--seconds 20]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rows import Row, row, write
from benchmarks.running_cluster import running_cluster
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig

_TRANSITIONS_PER_STEP = 0.25
_SERVICES = ("actor", "replay", "paramserver", "learner", "evaluator")
_COSTS = (*(f"{service} for 1,000 env steps" for service in _SERVICES), "learner for 1,000 transitions learned from")


@dataclass(frozen=True)
class Case:
    """One size of a cluster."""

    actors: int = 2
    shards: int = 1
    batch: int = 32

    def __str__(self) -> str:
        return f"{self.actors} actors, {self.shards} shards, batch {self.batch}"


_CASES = (
    Case(),
    Case(actors=1),
    Case(actors=4),
    Case(actors=8),
    Case(shards=2),
    Case(shards=4),
    Case(batch=128),
    Case(batch=512),
)


def main() -> None:
    """Measure and print; write benchmarks/results/cluster_cost.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="configs/pong_dqn.yaml", help="run to take environment and agent from")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of one measurement")
    arguments = parser.parse_args()
    costs: dict[Case, dict[str, list[float]]] = {case: defaultdict(list) for case in _CASES}
    for _ in range(arguments.rounds):
        for case in _CASES:
            for name, cost in zip(_COSTS, _cost(arguments.config, case, arguments.seconds), strict=True):
                costs[case][name].append(cost)
    write("cluster_cost", _rows(arguments.config, costs))


def _rows(path: str, costs: dict[Case, dict[str, list[float]]]) -> list[Row]:
    env = from_document(RunConfig, read_document(Path(path))).env.id
    return [
        row(
            f"processor time of {name}, {env}, {case}, against {_CASES[0]}",
            "ms",
            costs[case][name],
            costs[_CASES[0]][name],
        )
        for case in _CASES
        for name in _COSTS
    ]


def _cost(path: str, case: Case, seconds: float) -> list[float]:
    """Return milliseconds of processor time, one for each of `_COSTS`."""
    options = {
        "--replay.shards": str(case.shards),
        "--agent.batch-size": str(case.batch),
        "--learner.updates-per-env-step": str(_TRANSITIONS_PER_STEP / case.batch),
        "--table.error-buffer-updates": "20",
    }
    with running_cluster(path, case.actors, options) as cluster:
        work = cluster.work_in(seconds)
    learned = work.learner_steps * case.batch
    print(
        f"{case}: {work.env_steps_per_s:,.0f} env steps/s, "
        f"{learned / work.env_steps:.2f} transitions learned from for each",
        flush=True,
    )
    by_env_steps = [1e6 * work.processor_s[name] / work.env_steps for name in _SERVICES]
    return [*by_env_steps, 1e6 * work.processor_s["learner"] / learned]


if __name__ == "__main__":
    main()
