"""The format numbers of the files that Tidemill keeps, and the refusal of a number that it cannot read.

Every file says the number of its format. One that says none is of format 1, as the first releases wrote it. A change
that an older program would misread gets the next number here, and the files of the format before stay in
tests/data/formats, which tests read. docs/releasing.md has the promise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.errors import UnknownFormat

KEY = "format"
"""Name of the number in a document; scores have a column of this name."""

CONFIG, RESULT, SCORES, EVALUATION = "config", "result", "scores", "evaluation"
PARAMETERS, CHECKPOINT, REPLAY_LOG = "parameters", "checkpoint", "replay log"
BUNDLE, TABLE, WRITER = "bundle", "table", "writer"
EPISODES, CLOCK, SWEEP, ENV_SPEC = "episodes", "clock", "sweep", "spaces"

NEWEST: Mapping[str, int] = {
    CONFIG: 1,  # config.yaml
    RESULT: 1,  # result.json
    SCORES: 1,  # scores.csv, confirmations.csv
    EPISODES: 1,  # episodes.csv
    CLOCK: 1,  # wall_clock.json
    ENV_SPEC: 1,  # env_spec.json
    EVALUATION: 1,  # evaluations/*.json
    PARAMETERS: 1,  # params/*.json
    CHECKPOINT: 4,  # checkpoints/*.safetensors
    REPLAY_LOG: 3,  # replay/*.log, *.copies, *.snapshot and newest
    BUNDLE: 1,  # bundle.json
    TABLE: 1,  # manifest.json of an exported table
    WRITER: 1,  # what `ReplayWriter.state` returns
    SWEEP: 1,  # trials.jsonl of a sweep
}
"""The number of each kind that is written today."""

_OLDEST: Mapping[str, int] = {CHECKPOINT: 4, REPLAY_LOG: 3}
"""The oldest number that is read, where that is not 1."""


def check_format(kind: str, number: object, where: object) -> None:
    """Refuse a file whose format this program does not read.

    Args:
        kind: One of `NEWEST`.
        number: What the file says; None if it says nothing, which is format 1.
        where: The file, for the message.

    Raises:
        UnknownFormat: The number is newer than the newest or older than the oldest that is read, or not a number.
    """
    newest, oldest = NEWEST[kind], _OLDEST.get(kind, 1)
    number = 1 if number is None else number
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise UnknownFormat(f"{where}: format {number!r} is not a format; expected a whole number from 1 to {newest}")
    if number > newest:
        raise UnknownFormat(f"{where}: format {number}; this Tidemill reads up to {newest}: use a newer Tidemill")
    if number < oldest:
        raise UnknownFormat(
            f"{where}: format {number}; this Tidemill reads {oldest} and later: use the Tidemill that wrote it"
        )


def read_json(file: Path, kind: str) -> dict[str, Any]:
    """Return the object in a JSON file without the number of its format; empty if there is none that can be read.

    Raises:
        UnknownFormat: The file has a format that this version does not know.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    check_format(kind, document.pop(KEY, None), file)
    return document
