"""result.json: the final summary of a run, written once and whole."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

RESULT = "result.json"


@dataclass(frozen=True)
class Result:
    """How a run ended. None stands for what there is not."""

    run: str
    """Name of the run."""
    algorithm: str
    env_id: str
    seed: int
    solved: bool
    """Whether the target was reached, and confirmed if that was asked for."""
    reason: str
    """Why the run ended."""
    target_return: float | None
    mean_return: float | None
    """Mean raw return of the evaluation that decided; None if nothing was ever evaluated."""
    std_return: float | None
    min_return: float | None
    max_return: float | None
    median_return: float | None
    human_normalised: float | None
    """Mean in Atari games: 0 is random play, 1 a person; None elsewhere."""
    episodes: int
    """Episodes of that evaluation."""
    wall_s: float
    """Seconds of training when that evaluation ended, over all sessions; confirmation comes after it."""
    env_steps: int
    """Agent decisions behind its parameters."""
    learner_steps: int
    """Gradient steps behind its parameters."""
    params_version: int
    confirmed_mean: float | None
    """Mean over fresh episodes with the same parameters; None without confirmation."""
    confirm_episodes: int
    """Episodes of the confirmation; 0 without."""
    failed_confirmations: int
    """How often before a mean reached the target but fresh episodes did not bear it out."""
    best_mean: float | None
    """Largest mean of any evaluation."""
    best_version: int
    """Version the tag `best` points at."""
    evaluations: int
    """Evaluations of the run."""
    learning_curve: str | None
    """File in the run's folder."""
    video: str | None
    """File in the run's folder."""


def write_result(result: Result, folder: Path) -> None:
    """Write FOLDER/result.json, whole or not at all."""
    draft = folder / "result.json.tmp"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(result), file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / RESULT)


def set_result_aside(folder: Path) -> None:
    """Keep the result of an earlier end as result-1.json, or the next free number: the run goes on."""
    if (folder / RESULT).exists():
        number = 1 + len(list(folder.glob("result-*.json")))
        (folder / RESULT).rename(folder / f"result-{number}.json")
