"""Comparison of `tidemill plan` with a run: its figure for this machine and the rate of a run as planned.

The run has all services but no evaluation, and the actors, decoder threads and shards of the plan. `peer` is the plan's
rate, so a ratio of 1 is a plan that came true.

    python -m benchmarks.plan_check [--rounds 3] [--seconds 30]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.rows import row, write
from benchmarks.running_cluster import running_cluster
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig
from tidemill.services.tools.plan import Plan, PlanOptions, make_plan, measured_rates

_PLANS = (("configs/breakout_dqn.yaml", "nature_dueling_dqn", 32), ("configs/quickstart.yaml", "quickstart", 128))
"""Configs, their cases in the learner's benchmark, and batch sizes."""


def main() -> None:
    """Measure and print; write benchmarks/results/plan_check.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each plan")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of one measurement")
    arguments = parser.parse_args()
    rows = []
    for path, case, batch_size in _PLANS:
        config = from_document(RunConfig, read_document(Path(path)))
        options = PlanOptions(
            os.cpu_count() or 2, config.env.id, batch_size=batch_size, updates_per_env_step=0.25, case=case
        )
        plan = make_plan(options, measured_rates(options))
        found = [_env_steps_per_s(path, options, plan, arguments.seconds) for _ in range(arguments.rounds)]
        name = f"env steps/s, {path}, {options.cores} cores, against the plan, in which {plan.limit} holds it back"
        rows.append(row(name, "1/s", found, [plan.env_steps_per_s] * len(found)))
    write("plan_check", rows)


def _env_steps_per_s(path: str, options: PlanOptions, plan: Plan, seconds: float) -> float:
    settings = {
        "--replay.shards": str(plan.shards),
        "--learner.decode-threads": str(plan.decode_threads),
        "--learner.updates-per-env-step": str(options.updates_per_env_step),
        "--agent.batch-size": str(options.batch_size),
        "--table.error-buffer-updates": "100",
    }
    with running_cluster(path, plan.actors, settings) as cluster:
        return cluster.work_in(seconds).env_steps_per_s


if __name__ == "__main__":
    main()
