"""benchmarks/results/race.json: a row for each training, written after each."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.learn.atomic import write_json
from benchmarks.rows import FOLDER_VARIABLE, machine

Row = dict[str, Any]
QUIET_CORES = 0.1
"""Processor time that others may take beside a training whose times are published, in cores."""


def default_file() -> Path:
    """Return the file of the published rows, in another folder if the environment names one."""
    return Path(os.environ.get(FOLDER_VARIABLE, "benchmarks/results")) / "race.json"


class Results:
    """The rows of a file."""

    def __init__(self, file: Path) -> None:
        """Read the rows of a file; there are none if it does not exist."""
        self._file = file
        self.rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []

    def find(self, task: str, contender: str, seed: int) -> Row | None:
        """Return the row of a training."""
        return next((row for row in self.rows if _key(row) == (task, contender, seed)), None)

    def put(self, row: Row) -> None:
        """Add a row, in place of an earlier one of the same training, and write the file; it says on which processor.

        Tasks may be raced on different machines, the contenders of one task are not.
        """
        here = machine()
        row = {"cpu": here["cpu"]} | row
        self.rows = [each for each in self.rows if _key(each) != _key(row)] + [row]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._file, {"machine": here, "rows": self.rows})


def to_target(curve: Sequence[Row], target: float | None) -> Row:
    """Return seconds and decisions of the first evaluation with a mean at the target; None if there is none."""
    reached = next((point for point in curve if target is not None and point["mean"] >= target), None)
    return {
        "to_target_s": reached["seconds"] if reached else None,
        "to_target_decisions": reached["decisions"] if reached else None,
    }


def _key(row: Row) -> tuple[str, str, int]:
    return row["task"], row["contender"], row["seed"]
