"""episodes.csv: every episode of every evaluation and confirmation, one row each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from tidemill.services.evaluator.protocol import Evaluation

COLUMNS = "params_version,kind,seed,episode_return,length\n"

Kind = Literal["evaluation", "confirmation"]


class EpisodeLog:
    """Appends the episodes of one evaluation after the other; a torn last line is cut off at the start."""

    def __init__(self, file: Path) -> None:
        """Open the file, or begin it."""
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        whole = text[: text.rfind("\n") + 1] or COLUMNS
        if whole != text:
            draft = file.with_suffix(".tmp")
            draft.write_text(whole, encoding="utf-8")
            draft.replace(file)

    def append(self, evaluation: Evaluation, version: int, kind: Kind) -> None:
        """Add the episodes of a version; they are on disk before this returns."""
        episodes = zip(evaluation.seeds, evaluation.returns.tolist(), evaluation.lengths.tolist(), strict=True)
        rows = [f"{version},{kind},{seed},{total},{length}\n" for seed, total, length in episodes]
        with self._file.open("a", encoding="utf-8") as file:
            file.write("".join(rows))
            file.flush()
            os.fsync(file.fileno())
