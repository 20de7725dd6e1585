"""What `python -m scripts.check words` finds in what people read."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_words


@pytest.mark.parametrize(
    "text, words",
    [
        ("'x' is no time: write 12:00", ["is no "]),
        ("one\ntwo begins anew, in vain", ["anew", "in vain"]),
        ("it goes on by a process of its own", ["goes on", "of its own"]),
        ("there is no such table, and an algorithm of your own is no longer asked", []),
    ],
)
def test_words_that_are_never_meant_are_found(text: str, words: list[str]) -> None:
    """The predicate `is no x` is one of them, `there is no x` and `no longer` are not."""
    assert [found for _, found, _ in check_words.found(text)] == words


def test_pages_and_messages_are_read_but_docstrings_and_code_are_not(tmp_path: Path) -> None:
    """Docstrings that people read are on the pages that are made from them."""
    (tmp_path / "tidemill").mkdir()
    (tmp_path / "README.md").write_text("first\n\n```bash\nsecond\n```\n")
    (tmp_path / "CHANGELOG.md").write_text("history\n")
    (tmp_path / "tidemill/one.py").write_text('"""A docstring."""\nraise ValueError(f"{1} is wrong")\n')
    read = {name: (line, text.split()) for name, line, text in check_words.texts(tmp_path)}
    assert read == {"README.md": (1, ["first"]), "tidemill/one.py": (2, ["is", "wrong"])}
