"""Result files: made with their folder, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from tidemill.atomic_files import write_atomically


def write_text(file: Path, text: str) -> None:
    """Write a text file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text)


def write_json(file: Path, document: object) -> None:
    """Write a JSON file."""
    write_text(file, json.dumps(document, indent=1) + "\n")
