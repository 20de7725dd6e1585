"""The header of a checkpoint: JSON in the metadata of its safetensors file, read without its tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

KEY = "tidemill_checkpoint"
_LENGTH_BYTES = 8  # before the header of a safetensors file
_MAX_BYTES = 100_000_000  # the longest header that safetensors accepts


def read_header(file: BinaryIO) -> dict[str, Any]:
    """Return the header; raises `AttributeError`, `KeyError`, `TypeError` or `ValueError` if it has none."""
    size = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    metadata = json.loads(file.read(min(size, _MAX_BYTES)))["__metadata__"]
    header: dict[str, Any] = json.loads(metadata[KEY])
    return header


def newest_steps(folder: Path) -> int:
    """Return the updates in the newest checkpoint of a folder; 0 if it has none, or none that can be read."""
    found = sorted(folder.glob("[!.]*.safetensors"))
    if not found:
        return 0
    try:
        with found[-1].open("rb") as file:
            return int(read_header(file)["counters"]["learner_steps"])
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return 0
