"""The pages of examples/: every excerpt is part of the file that it names, and every example has its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
PAGES = ("README.md", "replay/README.md")
_BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _lines(text: str) -> str:
    """Return the lines of a text, each between newlines, without what surrounds them."""
    return "\n" + "".join(f"{line.strip()}\n" for line in text.strip("\n").splitlines())


@pytest.mark.parametrize("page", PAGES)
def test_excerpts_are_parts_of_their_files(page: str) -> None:
    """A line of three dots stands for what is left out."""
    folder = (EXAMPLES / page).parent
    blocks = _BLOCK.findall((EXAMPLES / page).read_text(encoding="utf-8"))
    assert blocks
    for name, code in blocks:
        file = _lines((folder / name).read_text(encoding="utf-8"))
        for part in re.split(r"^\.\.\.\n", code, flags=re.MULTILINE):
            assert _lines(part) in file, f"{name}:\n{part}"


@pytest.mark.parametrize("page", PAGES)
def test_every_example_is_on_its_page(page: str) -> None:
    """Each module and config file of the folder is named."""
    text = (EXAMPLES / page).read_text(encoding="utf-8")
    folder = (EXAMPLES / page).parent
    files = [file.name for file in sorted(folder.glob("*.*")) if file.name != "README.md"]
    assert [name for name in files if name not in text] == []
