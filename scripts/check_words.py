"""Check that what people read has none of a few turns of phrase that this project has grown and no reader expects.

Read are the pages (those made from docstrings, settings and protos too), and the texts in the code that are no
docstrings: messages, help. Rewrite what is found by reading it, not by replacing the word.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.check_links import ROOT, documents

INSTEAD = {
    r"\banew\b": "again",
    r"\b(goes|go|went|going) on\b": "continue",
    r"\bin vain\b": "without success",
    r"\bof (its|their) own\b": "separate, or its own ...",
    r"\bbut for\b": "except",
    r"(?<!there )\b(is|are|was|were) no (?!longer\b)": "is not a",
    r"\bas ever\b": "as usual",
    r"\bnone of a\b": "not a ...",
    r"\bsays of itself\b": "reports",
}
"""What is never meant, as a pattern, and what to say."""

_LEFT_OUT = re.compile(r"CHANGELOG\.md|docs/adr/0|benchmarks/results/|tests/")
"""Pages that tell what was."""
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = ("tidemill", "services")


def texts(root: Path = ROOT) -> Iterator[tuple[str, int, str]]:
    """Yield what people read: the file, the line where it begins, and the text."""
    pages = [*documents(root), *sorted((root / "examples").rglob("*.md"))]
    for path in pages:
        name = path.relative_to(root).as_posix()
        if not _LEFT_OUT.match(name):
            yield name, 1, _FENCE.sub(lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"))
    for path in sorted(file for folder in _CODE for file in (root / folder).rglob("*.py")):
        if not path.stem.endswith(("_pb2", "_pb2_grpc")):
            for line, text in _literals(ast.parse(path.read_text(encoding="utf-8"))):
                yield path.relative_to(root).as_posix(), line, text


def _literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that are no docstrings: those stand on a line as a statement."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def found(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield what a text has of it: the line, counted from 0, the words and what to say instead."""
    for pattern, instead in INSTEAD.items():
        for match in re.finditer(pattern, text, re.IGNORECASE):
            yield text.count("\n", 0, match.start()), match[0], instead


def main() -> int:
    """Print each place; return 1 if there is one."""
    places = [
        f"{name}:{first + line}: {words.strip()!r}; say: {instead}"
        for name, first, text in texts()
        for line, words, instead in found(text)
    ]
    print("\n".join(places))
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main())
