"""The header of a checkpoint: JSON in the metadata of its safetensors file, read without its tensors."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, BinaryIO

KEY = "tidemill_checkpoint"
ENV_STEPS = ("base_env_steps", "server_env_steps")
"""What the names of its counters begin with that add up to the agent decisions of the run."""
_LENGTH_BYTES = 8  # before the header of a safetensors file
_MAX_BYTES = 100_000_000  # the longest header that safetensors accepts


def read_header(file: BinaryIO) -> dict[str, Any]:
    """Return the header; raises `AttributeError`, `KeyError`, `TypeError` or `ValueError` if it has none."""
    size = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    metadata = json.loads(file.read(min(size, _MAX_BYTES)))["__metadata__"]
    header: dict[str, Any] = json.loads(metadata[KEY])
    return header


def newest_header(folder: Path) -> dict[str, Any]:
    """Return the header of the newest checkpoint in a folder; empty without one, or if it cannot be read."""
    for newest in sorted(folder.glob("[!.]*.safetensors"))[-1:]:
        with contextlib.suppress(OSError, AttributeError, KeyError, TypeError, ValueError), newest.open("rb") as file:
            return read_header(file)
    return {}
