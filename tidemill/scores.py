"""The rows of scores.csv: what the evaluator measured, read by whoever shows it."""

from __future__ import annotations

import csv
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tidemill import formats
from tidemill.errors import DataLoss

EVALUATING = "evaluating.json"
"""File in a run's folder while an evaluation is under way: `version`, `ended` and `episodes`; after one without a score
`version` and `refusal`, its reason."""
NOT_EVALUATED = "the last evaluation was not completed"
"""In the reason of a result whose score is not of the run's newest parameters."""


@dataclass(frozen=True)
class Score:
    """One evaluation. Its fields are the columns of the file."""

    wall_s: float
    """Seconds of training when it ended, over all sessions of the run."""
    learner_steps: int
    """Updates behind the parameters."""
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
    median: float
    """Median return."""
    mean_length: float
    """Mean agent decisions of an episode."""
    human_normalised: float | None = None
    """Mean in Atari games: 0 is random play, 1 a person (`tidemill.envs.atari_scores`); None elsewhere."""


COLUMNS = tuple(field.name for field in fields(Score))
FILE_COLUMNS = (*COLUMNS, formats.KEY)
"""Columns of a file: those of a score, and the number of the file's format, the same in each row."""

_COUNTS = ("learner_steps", "env_steps", "params_version", "episodes")


def read_scores(file: Path) -> list[Score]:
    """Return the rows of a scores.csv in order; none if there is no file, and no last line that is torn.

    Raises:
        DataLoss: any other line is not a score.
        FatalError: the file has a format that this version does not know.
    """
    return list(ScoreReader(file).read())


class ScoreReader:
    """Reads a scores.csv again and again, and parses only the rows that were added since."""

    def __init__(self, file: Path) -> None:
        """Read nothing yet."""
        self._file = file
        self._lock = threading.Lock()  # a poll that was given up may still read
        self._forget()

    def read(self) -> tuple[Score, ...]:
        """Return the rows, as `read_scores` does: the same tuple while none is added.

        A file that was replaced, changed at its end or cut is read from its start. Any thread may call it.
        """
        with self._lock:
            try:
                added = self._read_added()
            except FileNotFoundError:
                self._forget()
                return ()
            if whole := added[: added.rfind(b"\n") + 1]:  # without a row whose writing was cut
                self._parse(whole)
            return self._rows

    def _forget(self) -> None:
        self._header: list[str] = []
        self._rows: tuple[Score, ...] = ()
        self._last_line, self._end, self._inode = b"", 0, 0

    def _read_added(self) -> bytes:
        """Return the bytes behind the last line that was read, or all of another file."""
        with self._file.open("rb") as content:
            content.seek(self._end - len(self._last_line))
            found, inode = content.read(), os.fstat(content.fileno()).st_ino
            if inode != self._inode or not found.startswith(self._last_line):
                self._forget()
                self._inode = inode
                content.seek(0)
                found = content.read()
        return found[len(self._last_line) :]

    def _parse(self, data: bytes) -> None:
        file = self._file
        try:
            rows = list(csv.reader(data.decode(errors="replace").splitlines(keepends=True)))
        except csv.Error as error:
            raise DataLoss(f"{file} is not a table of scores: {error}; move it aside") from error
        header = self._header or rows.pop(0)
        if formats.KEY in header and rows:
            _check_format(file, rows[-1][header.index(formats.KEY) :])
        if tuple(header) not in (FILE_COLUMNS, COLUMNS):
            raise DataLoss(f"{file} does not start with the columns {','.join(COLUMNS)}, move it aside")
        first = len(self._rows) + 2
        self._rows += tuple(_parse(file, number, header, cells) for number, cells in enumerate(rows, start=first))
        self._header, self._end = header, self._end + len(data)
        self._last_line = data[data.rfind(b"\n", 0, -1) + 1 :]


def read_best(folder: Path, target: float | None) -> Score | None:
    """Return the `best_score` of a run's folder; raises as `read_scores`."""
    return best_score(read_scores(folder / "scores.csv"), read_scores(folder / "confirmations.csv"), target)


def best_score(scores: Sequence[Score], confirmations: Sequence[Score], target: float | None) -> Score | None:
    """Return the best evaluation: one whose version was confirmed before all others, then by mean.

    The mean of fresh episodes counts where it is lower, also if the run has another target by now, or none. None
    without an evaluation.
    """
    fresh = {row.params_version: row.mean for row in confirmations}

    def rank(row: Score) -> tuple[bool, float]:
        mean = fresh.get(row.params_version)
        if mean is None:
            return False, row.mean
        return target is not None and mean >= target, min(row.mean, mean)

    return max(scores, key=rank, default=None)


def has_all_columns(file: Path) -> bool:
    """True if a scores.csv has every column of the present format."""
    with file.open(encoding="utf-8") as lines:
        return lines.readline() == ",".join(FILE_COLUMNS) + "\n"


def _check_format(file: Path, cells: list[str]) -> None:
    """Refuse the format that the newest row says; a format that is not a number is reported later, with the score."""
    if cells and cells[0].isdigit():
        formats.check_format(formats.SCORES, int(cells[0]), file)


def score_of(cells: Mapping[str, str]) -> Score:
    """Return the score of a row's cells.

    Raises:
        ValueError: a cell is not a number.
    """
    return Score(**{name: _value(name, cell) for name, cell in cells.items()})  # type: ignore[arg-type]


def _parse(file: Path, number: int, header: list[str], cells: list[str]) -> Score:
    try:
        row = dict(zip(header, cells, strict=True))
        row.pop(formats.KEY, None)
        return score_of(row)
    except ValueError as error:
        raise DataLoss(f"{file} line {number} is not a score: {','.join(cells)!r}") from error


def _value(name: str, cell: str) -> float | None:
    if name in _COUNTS:
        return int(cell)
    return None if cell == "" and name == "human_normalised" else float(cell)
