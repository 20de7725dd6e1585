"""The spaces of a run's environment, kept in the run's folder and compared when the run continues."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tidemill import formats
from tidemill.atomic_files import write_atomically
from tidemill.types import EnvSpec

FILE = "env_spec.json"


def record_spec(folder: Path, spec: EnvSpec) -> None:
    """Write the spaces that a run's checkpoints and table are for.

    Raises:
        OSError: The disk refused.
    """
    document = {formats.KEY: formats.NEWEST[formats.ENV_SPEC], **asdict(spec)}
    write_atomically(folder / FILE, json.dumps(document, indent=2) + "\n", sync=False)


def spec_changes(folder: Path, spec: EnvSpec) -> dict[str, tuple[Any, Any]]:
    """Return the fields of a spec that changed since it was recorded: name to the values then and now.

    It is empty if the folder has no record.

    Raises:
        UnknownFormat: The record has a format that this version does not know.
    """
    then = formats.read_json(folder / FILE, formats.ENV_SPEC)
    now = json.loads(json.dumps(asdict(spec)))
    compared = {each.name for each in fields(spec) if each.compare} & then.keys()
    return {name: (then[name], now[name]) for name in now if name in compared and then[name] != now[name]}
