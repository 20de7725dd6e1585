"""Folders as finished and unfinished runs leave them, small enough to work out by hand."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tidemill.config.load import write_document
from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.params.document import from_version, seal
from tidemill.params.version import LAST_TRAINED, Encoding, ParamsMetadata, Precision, Version
from tidemill.scores import COLUMNS

COMMIT = "0123456789ab"


def config_of(folder: Path, seed: int) -> RunConfig:
    """Return the settings of a run with a target of 50."""
    run = RunSettings(name=folder.name, root=str(folder.parent), seed=seed, target_return=50.0)
    return replace(RunConfig(), run=run)


def make_run(
    folder: Path,
    seed: int,
    points: Sequence[tuple[int, float]],
    *,
    confirmed: float | None = None,
    ended: bool = True,
    reason: str = "for a test",
) -> None:
    """Make the folder of a run.

    Args:
        folder: Where.
        seed: Its seed.
        points: Agent decisions and mean of each evaluation; it takes a second for a hundred decisions.
        confirmed: Mean of the confirmation of the last evaluation; None: the run was not solved.
        ended: Whether it has a result.
        reason: Why it ended.
    """
    folder.mkdir(parents=True)
    write_document(config_of(folder, seed), folder / "config.yaml")
    rows = [_row(number, *point) for number, point in enumerate(points, start=1)]
    (folder / "scores.csv").write_text("\n".join([",".join(COLUMNS), *rows, ""]))
    folder.with_name(f"{folder.name}.json").write_text(json.dumps({"commit": COMMIT, "machine": {"cores": 2}}))
    if not ended:
        return
    best = max(range(len(points)), key=lambda index: points[index][1])
    env_steps, mean = points[-1]
    result = {
        "solved": confirmed is not None,
        "reason": reason,
        "wall_s": env_steps / 100,
        "env_steps": env_steps,
        "mean_return": mean,
        "params_version": len(points),
        "best_version": best + 1,
        "confirmed_mean": confirmed,
        "confirm_episodes": 50 if confirmed is not None else 0,
        "failed_confirmations": 1,
    }
    (folder / "result.json").write_text(json.dumps(result))


def add_test(folder: Path, version: int, mean: float, episodes: int = 100) -> None:
    """Add a test of a version on fresh episodes."""
    file = folder / "evaluations" / f"learn-version-{version}-episodes-{episodes}.json"
    file.parent.mkdir(exist_ok=True)
    seeds = list(range(10_010_000, 10_010_000 + episodes))
    file.write_text(json.dumps({"mean": mean, "std": 1.5, "episodes": episodes, "env_steps": 100, "seeds": seeds}))


def _row(version: int, env_steps: int, mean: float) -> str:
    """Return a row of scores.csv, in the order of its columns."""
    return f"{env_steps / 100},{env_steps // 4},{env_steps},{version},20,{mean},2.0,{mean - 3},{mean + 3},{mean},30.0,"


def store_params(folder: Path, last_trained: int) -> None:
    """Add what a parameter server leaves: one version, where training stood when the verdict came."""
    params, blob = folder / "params", b"weights"
    params.mkdir()
    encoding = Encoding(Precision.FULL, len(blob), hashlib.sha256(blob).digest())
    created = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    version = Version(last_trained, last_trained - 1, 1, created, ParamsMetadata(), (encoding,))
    (params / f"{last_trained:010d}.json").write_bytes(seal(from_version(version)))
    (params / f"{last_trained:010d}.full.safetensors").write_bytes(blob)
    (params / "tags.json").write_bytes(seal({"sequence": 1, "tags": {LAST_TRAINED: last_trained}}))
