"""The evaluator's CSV files, which survive restarts: evaluations, confirmations and every episode."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from pathlib import Path
from typing import Literal

import structlog

from tidemill import formats
from tidemill.atomic_files import append_whole, is_there, write_atomically
from tidemill.envs.atari_scores import human_normalised
from tidemill.params.version import Version
from tidemill.scores import FILE_COLUMNS, Score, has_all_columns, read_scores
from tidemill.services.evaluator.protocol import Evaluation

_log = structlog.get_logger()


class ScoreLog:
    """scores.csv, or another file of the same columns. A row is on disk before `append` returns."""

    def __init__(self, file: Path) -> None:
        """Read the existing rows; a torn last line is truncated, and newer columns are added.

        Raises:
            DataLoss: the file holds something else.
        """
        self._file = file
        self._rows = read_scores(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        if not self._rows or not file.read_bytes().endswith(b"\n") or not has_all_columns(file):
            self._rewrite()

    @property
    def rows(self) -> tuple[Score, ...]:
        """Every row, oldest first."""
        return tuple(self._rows)

    @property
    def last_version(self) -> int:
        """Greatest version in the file; 0 for none."""
        return max((row.params_version for row in self._rows), default=0)

    def of_version(self, version: int) -> Score | None:
        """Return the newest row of a version; None if it was not evaluated."""
        return next((row for row in reversed(self._rows) if row.params_version == version), None)

    def append(self, score: Score) -> None:
        """Add a row."""
        append_whole(self._file, _row(score))
        self._rows.append(score)

    def _rewrite(self) -> None:
        lines = [_line(FILE_COLUMNS), *map(_row, self._rows)]
        write_atomically(self._file, "".join(lines))


def score_of(evaluation: Evaluation, version: Version, wall_s: float) -> Score:
    """Return an evaluation of a version as a row."""
    return Score(
        wall_s=round(wall_s, 3),
        learner_steps=version.metadata.learner_steps,
        env_steps=version.metadata.env_steps,
        params_version=version.version,
        episodes=len(evaluation.returns),
        mean=evaluation.mean,
        std=evaluation.std,
        min=float(evaluation.returns.min()),
        max=float(evaluation.returns.max()),
        median=evaluation.median,
        mean_length=float(evaluation.lengths.mean()),
        human_normalised=human_normalised(version.metadata.env_id, evaluation.mean),
    )


def _row(score: Score) -> str:
    return _line((*dataclasses.astuple(score), formats.NEWEST[formats.SCORES]))


def _line(cells: tuple[object, ...]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


_FIRST_EPISODE_COLUMNS = b"params_version,kind,seed,episode_return,length"
"""Of the first releases, whose rows have no number of the format."""
_EPISODE_COLUMNS = _FIRST_EPISODE_COLUMNS + f",{formats.KEY}".encode()

Kind = Literal["evaluation", "confirmation"]


class EpisodeLog:
    """Appends the episodes of each evaluation; a torn last line is truncated at startup.

    The last column is the number of the file's format, the same in each row. A run reads only its confirmations' seeds,
    so a file that holds something else ends none: it is kept as episodes.csv.damaged.

    Attributes:
        next_confirmation_seed: The seed after the largest of a confirmation; 0 for none.
    """

    def __init__(self, file: Path) -> None:
        """Open the file, creating it if missing.

        Raises:
            UnknownFormat: It has a format that this version does not know.
        """
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        content = file.read_bytes() if is_there(file) else b""
        header, _, rows = content[: content.rfind(b"\n") + 1].partition(b"\n")
        _check_episodes_format(file, header, rows)
        if header == _FIRST_EPISODE_COLUMNS:
            rows = rows.replace(b"\n", b",1\n")
        elif header != _EPISODE_COLUMNS:
            if content:
                kept = file.rename(file.with_name(f"{file.name}.damaged"))
                _log.warning("file does not contain episodes, renamed", file=str(file), kept_as=str(kept))
            rows = b""
        self.next_confirmation_seed = _next_confirmation_seed(rows)
        if (whole := _EPISODE_COLUMNS + b"\n" + rows) != content:
            write_atomically(file, whole)

    def append(self, evaluation: Evaluation, version: int, kind: Kind) -> None:
        """Add the episodes of a version; they are on disk before this returns."""
        number = formats.NEWEST[formats.EPISODES]
        episodes = zip(evaluation.seeds, evaluation.returns.tolist(), evaluation.lengths.tolist(), strict=True)
        rows = [f"{version},{kind},{seed},{total},{length},{number}\n" for seed, total, length in episodes]
        append_whole(self._file, "".join(rows))
        if kind == "confirmation":
            self.next_confirmation_seed = max(self.next_confirmation_seed, 1 + max(evaluation.seeds))


_CONFIRMED_SEED = re.compile(rb"^\d+,confirmation,(\d+),", re.MULTILINE)


def _next_confirmation_seed(rows: bytes) -> int:
    return 1 + max((int(seed) for seed in _CONFIRMED_SEED.findall(rows)), default=-1)


def _check_episodes_format(file: Path, header: bytes, rows: bytes) -> None:
    """Refuse the format that the newest row says, if it says one."""
    columns, cells = header.split(b","), rows[:-1].rpartition(b"\n")[2].split(b",")
    said = dict(zip(columns, cells, strict=False)).get(formats.KEY.encode(), b"")
    if said.isdigit():
        formats.check_format(formats.EPISODES, int(said), file)
