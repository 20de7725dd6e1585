"""Files that are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path


def write_text(file: Path, text: str) -> None:
    """Write a text file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)


def write_json(file: Path, document: object) -> None:
    """Write a JSON file."""
    write_text(file, json.dumps(document, indent=1) + "\n")
