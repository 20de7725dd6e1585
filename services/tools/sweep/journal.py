"""trials.jsonl: the started and finished trials of a sweep, from which it continues after any stop."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemill import formats
from tidemill.atomic_files import sync_file
from tidemill.errors import DataLoss
from tidemill.services.tools.sweep.space import Values


@dataclass
class Trial:
    """One set of values.

    Attributes:
        number: Counts from 0.
        values: Of the settings that vary.
        scores: Of the runs that have ended, by seed; None for one that failed.
        failed_at_end: Seeds of the runs that failed although they reached their end, as without a learner.
    """

    number: int
    values: Values
    scores: dict[int, float | None] = field(default_factory=dict)
    failed_at_end: set[int] = field(default_factory=set)

    def has_ended(self, seeds: tuple[int, ...]) -> bool:
        """True if the run of every seed has ended."""
        return all(seed in self.scores for seed in seeds)

    @property
    def has_failed(self) -> bool:
        """Whether a run of it has."""
        return None in self.scores.values()

    @property
    def score(self) -> float | None:
        """Mean over the seeds that have ended; None if one has failed, or none has ended."""
        scores = [score for score in self.scores.values() if score is not None]
        return None if self.has_failed or not scores else statistics.fmean(scores)


class Journal:
    """The trials of a sweep on disk, and the number of the format. A line is there before the call returns."""

    def __init__(self, file: Path) -> None:
        """Read what there is; a last line whose writing was cut is removed.

        Raises:
            DataLoss: Another line is not a sweep record.
            UnknownFormat: The file has a format that this version does not know.
        """
        self.trials: list[Trial] = []
        self._format: int | None = None
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        content = file.read_bytes()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                self._apply(json.loads(line))
            except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
                raise DataLoss(
                    f"{file}, line {number} is not a sweep record: {line[:80]!r}; move the file aside to start over"
                ) from error
        os.truncate(file, whole)
        if self._format != formats.NEWEST[formats.SWEEP]:
            self._write({formats.KEY: formats.NEWEST[formats.SWEEP]})

    def forget_failures(self) -> None:
        """Take runs that failed for runs that have not begun."""
        for trial in self.trials:
            trial.scores = {seed: score for seed, score in trial.scores.items() if score is not None}

    def begin(self, values: Values) -> Trial:
        """Add a trial."""
        self._write({"trial": len(self.trials), "values": values})
        return self.trials[-1]

    def end(self, trial: Trial, seed: int, score: float | None, *, failed_at_end: bool = False) -> None:
        """Add how a run ended; None says that it failed."""
        record = {"trial": trial.number, "seed": seed, "score": score}
        self._write(record | ({"failed_at_end": True} if failed_at_end else {}))

    def _write(self, record: Mapping[str, Any]) -> None:
        with self._file.open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
            sync_file(file)
        self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        if formats.KEY in record:
            formats.check_format(formats.SWEEP, record[formats.KEY], self._file)
            self._format = record[formats.KEY]
        elif "values" in record:
            if record["trial"] != len(self.trials):
                raise ValueError("a trial is missing")
            self.trials.append(Trial(record["trial"], dict(record["values"])))
        else:
            trial, seed = self.trials[record["trial"]], int(record["seed"])
            trial.scores[seed] = record["score"]
            trial.failed_at_end -= {seed}
            if record.get("failed_at_end"):
                trial.failed_at_end.add(seed)
