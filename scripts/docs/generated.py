"""A page of docs/ that a script writes: written, or checked to be current."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"


def write_or_check(path: Path, text: str, command: str, arguments: Sequence[str]) -> int:
    """Write a page, or with `--check` compare it with what it should be; return the exit code.

    Args:
        path: The page's file.
        text: What it should hold.
        command: What writes it, for the message.
        arguments: The command line, without the program.
    """
    if "--check" not in arguments:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return 0
    print(f"{os.path.relpath(path, FOLDER.parents[1])} is out of date: run {command}", file=sys.stderr)
    return 1
