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
    """`x is not a y` and `there is no x` are good English; the other is found, and `no longer` is not."""
    assert [found for _, found, _ in check_words.found(text)] == words


def test_docstrings_begin_with_the_noun() -> None:
    """`Return whether x` is found in a docstring, and in no other text."""
    assert [words for _, words, _ in check_words.found("Return whether x", is_docstring=True)] == ["Return whether"]
    assert not list(check_words.found("Return whether x"))


def test_pages_alerts_messages_docstrings_and_comments_are_read_but_code_is_not(tmp_path: Path) -> None:
    """The history in CHANGELOG.md, blocks of code in pages and records of runs are left out."""
    for folder in ("tidemill", "examples", "deploy/prometheus/rules", "benchmarks/results"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "README.md").write_text("first\n\n```bash\nsecond\n```\n")
    (tmp_path / "CHANGELOG.md").write_text("history\n")
    (tmp_path / "deploy/prometheus/rules/one.yml").write_text("alert\n")
    (tmp_path / "tidemill/one.py").write_text('raise ValueError(f"{1} is wrong")\n')
    (tmp_path / "examples/two.py").write_text('"""A docstring."""\n')
    (tmp_path / "benchmarks/results/old.yaml").write_text("x: 1  # a record\n")
    (tmp_path / "deploy/three.yml").write_text("x: a#b\ny: 1  # a value\n")
    (tmp_path / "tidemill/four.c").write_text("int x;\n/* two\n * lines */\n")
    read = {name: (line, text.split(), said) for name, line, text, said in check_words.texts(tmp_path)}
    assert read == {
        "README.md": (1, ["first"], False),
        "deploy/prometheus/rules/one.yml": (1, ["alert"], False),
        "tidemill/one.py": (1, ["is", "wrong"], False),
        "examples/two.py": (1, ["A", "docstring."], True),
        "deploy/three.yml": (2, ["#", "a", "value"], False),
        "tidemill/four.c": (2, ["/*", "two", "*", "lines", "*/"], False),
    }
