"""CHANGELOG.md names each change once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[3] / "CHANGELOG.md"
_BEGINNING = 80
"""Characters of an entry by which two versions of it are recognised."""


def test_entry_is_there_once() -> None:
    """A merge may keep two versions of an entry, which begin alike and contradict each other."""
    lines = CHANGELOG.read_text().splitlines()
    entries = Counter(line[:_BEGINNING] for line in lines if line.startswith("- "))
    assert [entry for entry, count in entries.items() if count > 1] == []
