"""The rows of scores.csv: what the evaluator measured, read by whoever shows it."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path

from tidemill.errors import DataLoss


@dataclass(frozen=True)
class Score:
    """One evaluation. Its fields are the columns of the file."""

    wall_s: float
    """Seconds of training when it ended, over all sessions of the run."""
    learner_steps: int
    """Gradient steps behind the parameters."""
    env_steps: int
    """Agent decisions behind the parameters."""
    params_version: int
    """Version that was evaluated."""
    episodes: int
    """Full episodes played."""
    mean: float
    """Mean of their raw returns."""
    std: float
    """Standard deviation of them (over the sample, not corrected)."""
    min: float
    """Smallest return."""
    max: float
    """Largest return."""


COLUMNS = tuple(field.name for field in fields(Score))
_COUNTS = ("learner_steps", "env_steps", "params_version", "episodes")
_KINDS = {name: int if name in _COUNTS else float for name in COLUMNS}


def read_scores(file: Path) -> list[Score]:
    """Return the rows of a scores.csv in order; none if there is no file, and no last line that is torn.

    Raises:
        DataLoss: any other line is no score.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    if lines and not lines[-1].endswith("\n"):  # a row whose writing was cut
        lines.pop()
    if not lines:
        return []
    if tuple(next(csv.reader(lines[:1]))) != COLUMNS:
        raise DataLoss(f"{file} does not start with the columns {','.join(COLUMNS)}; move it away")
    return [_parse(file, number, cells) for number, cells in enumerate(csv.reader(lines[1:]), start=2)]


def _parse(file: Path, number: int, cells: list[str]) -> Score:
    try:
        return Score(*(_KINDS[name](cell) for name, cell in zip(COLUMNS, cells, strict=True)))  # type: ignore[arg-type]
    except ValueError as error:
        raise DataLoss(f"{file} line {number} is no score: {','.join(cells)!r}") from error
