"""Check that nothing people read has one of a few phrases that this project has grown and no reader expects.

Read are the pages (those made from settings and protos too), the alerts, every text in the code (messages, help and
docstrings; of tests the docstrings), and comments in code and in configurations. Rewrite what is found by reading it,
not by replacing the word.
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
"""Each phrase as a pattern, and what to say instead."""

IN_DOCSTRINGS = INSTEAD | {r"\AReturn w(hat|hich|hether)\b": "True if ..., or the noun that is returned"}
"""The same for docstrings."""

_LEFT_OUT = re.compile(r"CHANGELOG\.md|docs/adr/0|benchmarks/results/|tests/")
"""Pages that tell what was."""
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = ("tidemill", "services", "scripts", "benchmarks", "examples")
_TESTS = "tests"
_THIS = "scripts/check_words.py"
_ALERTS = "deploy/prometheus/rules"
_COMMENTED = ("*.py", "*.c", "*.yaml", "*.yml", "*.toml", "*.sbatch", "Dockerfile", "Makefile")
_COMMENT = re.compile(r"/\*.*?\*/|^#[^\n]*|(?<=\s)#[^\n]*", re.MULTILINE | re.DOTALL)
"""A comment; a `#` in a text of the code counts as the beginning of one."""


def texts(root: Path = ROOT) -> Iterator[tuple[str, int, str, bool]]:
    """Yield texts that people read: file, line where the text begins, the text, and True for a docstring."""
    pages = [*documents(root), *sorted((root / "examples").rglob("*.md"))]
    for path in pages:
        name = path.relative_to(root).as_posix()
        if not _LEFT_OUT.match(name):
            text = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"))
            yield name, 1, text, False
    for path in sorted((root / _ALERTS).glob("*.yml")):
        yield path.relative_to(root).as_posix(), 1, path.read_text(encoding="utf-8"), False
    for path in sorted(file for folder in (*_CODE, _TESTS) for file in (root / folder).rglob("*.py")):
        if not path.stem.endswith(("_pb2", "_pb2_grpc")):
            name = path.relative_to(root).as_posix()
            for line, text, is_docstring in _literals(ast.parse(path.read_text(encoding="utf-8"))):
                if is_docstring or not name.startswith(_TESTS):  # other texts of tests are what they expect
                    yield name, line, text, is_docstring
    for path in sorted(_commented(root)):
        code = path.read_text(encoding="utf-8")
        for match in _COMMENT.finditer(code):
            yield path.relative_to(root).as_posix(), code.count("\n", 0, match.start()) + 1, match[0], False


def _commented(root: Path) -> Iterator[Path]:
    """Yield the files whose comments are read: not this one, stubs, or records of runs."""
    folders = [*_CODE, _TESTS, "configs", "deploy"]
    for pattern in _COMMENTED:
        found = [*root.glob(pattern), *(file for folder in folders for file in (root / folder).rglob(pattern))]
        for file in found:
            is_made = file.stem.endswith(("_pb2", "_pb2_grpc")) or file.is_relative_to(root / "benchmarks/results")
            if not is_made and file.name != Path(_THIS).name:
                yield file


def _literals(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield the texts of a module: line, text, and True for a docstring, which stands on a line as a statement."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value, id(node) in docstrings


def found(text: str, *, is_docstring: bool = False) -> Iterator[tuple[int, str, str]]:
    """Yield each phrase in a text: its line, counted from 0, the phrase and what to say instead."""
    for pattern, instead in (IN_DOCSTRINGS if is_docstring else INSTEAD).items():
        for match in re.finditer(pattern, text, re.IGNORECASE):
            yield text.count("\n", 0, match.start()), match[0], instead


def main() -> int:
    """Print each place; return 1 if there is one."""
    places = [
        f"{name}:{first + line}: {words.strip()!r}; say: {instead}"
        for name, first, text, is_docstring in texts()
        if name != _THIS
        for line, words, instead in found(text, is_docstring=is_docstring)
    ]
    print("\n".join(places))
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main())
