"""Comparison of `tidemill plan` with a run: its figure for this machine and the rate of a run as planned.

The run has all services but no evaluation, and the actors, decoder threads and shards of the plan. Before each run the
rate of its learner alone is measured as benchmarks/learner.py does, and planned with: rates of another day or machine
would be compared instead of the plan. `peer` is the plan's rate, so a ratio of 1 is a plan that came true. The other
rows say where a difference comes from and, without a GPU, how far today's rate is from the one that an installed
Tidemill plans with.

    python -m benchmarks.plan_check [--rounds 3] [--seconds 30]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.learner import learner_rate
from benchmarks.learner_feed import servers
from benchmarks.rows import Row, row, write
from benchmarks.running_cluster import Work, running_cluster
from tidemill.config.load import from_document, load_run, read_document, write_document
from tidemill.config.sections import RunConfig
from tidemill.services.tools.plan import Plan, PlanOptions, make_plan, measured_rates, updates_per_core_s

_PLANS = (("configs/breakout_dqn.yaml", "nature_dueling_dqn", 32), ("configs/quickstart.yaml", "quickstart", 128))
"""Configs, their cases in the learner's benchmark, and batch sizes."""
_TABLE_STEPS = 20_000
"""Transitions that a learner alone is fed from."""


@dataclass(frozen=True)
class Trial:
    """A plan and what came of it."""

    updates_per_s: float
    """Of the learner alone, which the plan was made with: of a core or, if it has one, of a GPU."""
    plan: Plan
    work: Work
    """Of the run."""


def main() -> None:
    """Measure and print; write benchmarks/results/plan_check.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each plan")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of one measurement")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for path, case, batch_size in _PLANS:
        config = from_document(RunConfig, read_document(Path(path)))
        options = PlanOptions(
            os.cpu_count() or 2,
            config.env.id,
            gpus=int(torch.cuda.is_available()),  # the run has one learner
            batch_size=batch_size,
            updates_per_env_step=0.25,
            case=case,
        )
        trials = [_trial(path, options, arguments.seconds) for _ in range(arguments.rounds)]
        rows += _rows(f"{path}, {options.cores} cores", options, trials)
    write("plan_check", rows)


def _trial(path: str, options: PlanOptions, seconds: float) -> Trial:
    rate = _updates_per_s(path, options.batch_size, seconds)
    options = dataclasses.replace(options, updates_per_s=rate)
    plan = make_plan(options, measured_rates(options))
    return Trial(rate, plan, _work(path, options, plan, seconds))


def _rows(case: str, options: PlanOptions, trials: list[Trial]) -> Iterator[Row]:
    works, rates = [trial.work for trial in trials], [trial.updates_per_s for trial in trials]
    name = f"env steps/s, {case}, against the plan, in which {trials[0].plan.limit} holds it back"
    yield row(name, "1/s", [work.env_steps_per_s for work in works], [trial.plan.env_steps_per_s for trial in trials])
    per = "s" if options.gpus else "core second"
    in_run = [work.learner_steps / (work.seconds if options.gpus else work.processor_s["learner"]) for work in works]
    yield row(f"updates per {per}, {case}, in the run against the learner alone", "1/s", in_run, rates)
    cores = [work.processor_s["learner"] / work.seconds for work in works]
    everything = [sum(work.processor_s.values()) / work.seconds for work in works]
    yield row(f"cores, {case}, of the learner against all services", "1", cores, everything)
    if options.gpus:  # no rate of one is in the package
        return
    packaged = [updates_per_core_s(options.case, options.batch_size)] * len(rates)
    name = f"updates per core second, {case}, of the learner alone against the package's rate"
    yield row(name, "1/s", rates, packaged)


def _updates_per_s(run: str, batch_size: int, seconds: float) -> float:
    config, _ = load_run(run, {"agent.batch_size": batch_size, "table.min_size": _TABLE_STEPS // 2})
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        path = Path(folder) / "run.yaml"
        write_document(config, path)
        with servers(config, str(path), _TABLE_STEPS) as options:
            return learner_rate(str(path), options, seconds)[0]


def _work(path: str, options: PlanOptions, plan: Plan, seconds: float) -> Work:
    settings = {
        "--replay.shards": str(plan.shards),
        "--learner.decode-threads": str(plan.decode_threads),
        "--learner.updates-per-env-step": str(options.updates_per_env_step),
        "--agent.batch-size": str(options.batch_size),
        "--table.error-buffer-updates": "100",
    }
    with running_cluster(path, plan.actors, settings) as cluster:
        return cluster.work_in(seconds)


if __name__ == "__main__":
    main()
