"""What one core was measured to do, read from the results that the benchmarks of the repository write."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from tidemill.errors import FatalError

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def actor_steps_per_s(env_id: str, results: Path = RESULTS) -> float:
    """Return env steps/s of an actor on one core; of an Atari game that was not measured, the median of the others.

    Raises:
        FatalError: Nothing was measured; the message says how to.
    """
    prefix = "env steps/s on one core, "
    found = {name[len(prefix) :].partition(",")[0]: rate for name, rate in _rows("actor", results).items()}
    if env_id in found:
        return found[env_id]
    games = [rate for name, rate in found.items() if name.startswith("ALE/")]
    if env_id.startswith("ALE/") and games:
        return statistics.median(games)
    raise FatalError(
        f"env steps/s of {env_id} were not measured: run `make bench-actor BENCH='--config YOUR.yaml'`, "
        "or give --actor-steps-per-s"
    )


def updates_per_core_s(case: str, batch_size: int, results: Path = RESULTS) -> float:
    """Return gradient steps a second of a learner on one core, decoding included.

    Args:
        case: Name of the benchmark's case or config, e.g. `quickstart`, or `nature_dueling_dqn` without its batch size.
        batch_size: Items of an update.
        results: Folder of the results.

    Raises:
        FatalError: It was not measured; the message says how to.
    """
    for name, rate in _rows("learner", results).items():
        is_case = name.removeprefix("updates per core second, ").startswith((f"{case},", f"{case}_{batch_size},"))
        if is_case and f"batch {batch_size}," in name:
            return rate
    raise FatalError(
        f"updates/s of {case} at batch {batch_size} were not measured: run `make bench-learner`, "
        "or give --updates-per-s"
    )


def replay_per_s(what: str, results: Path = RESULTS) -> float:
    """Return transitions/s of the replay benchmark's row whose name begins so."""
    for name, rate in _rows("replay", results).items():
        if name.startswith(what):
            return rate
    raise FatalError(f"{what!r} was not measured: run `make bench-replay`")


def _rows(name: str, results: Path) -> dict[str, float]:
    path = results / f"{name}.json"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except OSError as error:
        raise FatalError(
            f"cannot read {path}: {error.strerror}; the figures lie in the repository, not in the installed package"
        ) from error
    return {row["name"]: row["ours"] for row in rows if row["ours"] is not None}
