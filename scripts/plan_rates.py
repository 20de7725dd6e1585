"""`python -m scripts.plan_rates`: write the rates that `tidemill plan` computes with.

They are taken from benchmarks/results into the package, so that an installed Tidemill can plan without a checkout.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidemill.services.tools.plan import RATES_FILE

_RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
_ACTOR = "env steps/s on one core, "
_LEARNER = "updates per core second, "
_DRAW_BATCH = 512
_REPLAY = {
    "decoded_whole": ("feed", "feed unmirrored against", 1),
    "decoded_mirrored": ("feed", "feed mirrored against", 1),
    "two_threads": ("decode", "batches of 512 decoded, 2 threads against 1, kernel", None),
    "inserted": ("replay", "insert, 1 writer", 1),
    "sampled_whole": ("replay_draw", "batches of 512 per core second of one server, whole", _DRAW_BATCH),
    "sampled_mirrored": ("replay_draw", "batches of 512 per core second of one server, mirrored", _DRAW_BATCH),
}
"""What is planned with: the benchmark, its row, and the transitions of the row's unit; None for the row's ratio."""


def measured() -> dict[str, Any]:
    """Return the document of `RATES_FILE`, from the results of the benchmarks."""
    actor, learner = _results("actor"), _results("learner")
    updates: dict[str, dict[str, float]] = {}
    for name, rate in _rows(learner, _LEARNER).items():
        case, batch, _ = name.split(", ", 2)
        size = batch.removeprefix("batch ")
        updates.setdefault(case.removesuffix(f"_{size}"), {})[size] = rate
    envs = {name.partition(", ")[0]: rate for name, rate in _rows(actor, _ACTOR).items()}
    return {
        "source": "benchmarks/results, through scripts/plan_rates.py",
        "cpu": actor["machine"]["cpu"],
        "actor_env_steps_per_s": {env: rate for env, rate in envs.items() if " " not in env},  # no variants
        "updates_per_core_s": updates,
        "update_in_run_s": _update_in_run_s(),
        "replay_transitions_per_s": {what: _figure(*source) for what, source in _REPLAY.items()},
    }


def _update_in_run_s() -> float:
    """Return how many seconds of a core an update costs more in a run than for a learner alone, from small updates."""
    rows = _results("plan_check")["rows"]
    row = next(
        row for row in rows if "quickstart" in row["name"] and "in the run against the learner alone" in row["name"]
    )
    return round(float(1 / row["ours"] - 1 / row["peer"]), 6)


def _results(name: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((_RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return results


def _figure(benchmark: str, prefix: str, transitions: int | None) -> float:
    """Return a row's rate in transitions, or its ratio."""
    row = next(row for row in _results(benchmark)["rows"] if row["name"].startswith(prefix))
    return float(row["ratio"]) if transitions is None else round(row["ours"] * transitions, 1)


def _rows(results: dict[str, Any], prefix: str) -> dict[str, float]:
    """Return the rate of each row whose name begins so, by the rest of its name."""
    rows = {row["name"]: row["ours"] for row in results["rows"] if row["ours"] is not None}
    return {name[len(prefix) :]: rate for name, rate in rows.items() if name.startswith(prefix)}


if __name__ == "__main__":
    RATES_FILE.write_text(json.dumps(measured(), indent=2) + "\n", encoding="utf-8")
