"""The comparison of plans with runs counts a learner by what it computes on."""

from __future__ import annotations

import sys

import pytest
import torch

from benchmarks import plan_check
from benchmarks.rows import Row
from benchmarks.running_cluster import Work
from tidemill.services.tools.plan import Plan, PlanOptions

_WORK = Work(seconds=10.0, env_steps=4000, learner_steps=1000, processor_s={"learner": 5.0, "actor": 20.0})


@pytest.mark.parametrize("on_gpu, per, in_run", [(True, "s", 100.0), (False, "core second", 200.0)])
def test_learner_on_a_gpu_is_planned_and_counted_by_the_clock(
    on_gpu: bool, per: str, in_run: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its core only launches. A core's learner is counted by its processor time, and with the package's rate."""
    gpus: list[int] = []
    written: list[Row] = []

    def work(path: str, options: PlanOptions, plan: Plan, seconds: float) -> Work:
        gpus.append(options.gpus)
        return _WORK

    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(plan_check, "_updates_per_s", lambda *_: 150.0)
    monkeypatch.setattr(plan_check, "_work", work)
    monkeypatch.setattr(plan_check, "write", lambda name, rows: written.extend(rows))
    monkeypatch.setattr(sys, "argv", ["plan_check", "--rounds", "1"])
    plan_check.main()
    assert gpus == [int(on_gpu)] * 2
    rows = {str(row["name"]): row["ours"] for row in written}
    updates = {name: rate for name, rate in rows.items() if name.startswith("updates per ")}
    assert len(updates) == (2 if on_gpu else 4)
    assert [rate for name, rate in updates.items() if "in the run" in name] == [in_run, in_run]
    assert all(name.startswith(f"updates per {per}, ") for name in updates)
