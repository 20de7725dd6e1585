"""Change a file one place at a time and see whether its tests notice: `python -m scripts.mutants FILE --tests PATH...`.

A *mutant* is the file with one comparison, operator, number, condition or statement changed. It is *killed* if a test
fails, or hangs past the limit, and *survives* if all pass: then either no test states what that place is for, or the
change makes no difference that anyone could see. The tests run in a copy of the tree, so the checkout is never touched.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from multiprocessing.context import ForkServerContext
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LEFT_OUT = (".git", ".venv", ".*_cache", "__pycache__", ".hypothesis", "runs", "*.egg-info")
_PRELOADED = ["pytest", "hypothesis", "numpy", "grpc", "torch"]
"""Imported once, in the process that the runs are forked from: it is most of the time of a small test file."""

_LEAST_S = 10.0
"""A mutant hangs after four times what its tests need, and this."""

_EXIT_CODES = 100
"""Added to pytest's, so that an error of this script is not taken for a test that fails."""

_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.Pow: ("**", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "+"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True, order=True)
class Mutation:
    """One change of a text.

    Attributes:
        start: Byte at which it starts.
        end: Byte after the last that goes.
        replacement: What comes instead.
        line: Line of the first byte, from 1.
    """

    start: int
    end: int
    replacement: str
    line: int

    def applied(self, source: bytes) -> bytes:
        """Return the mutant."""
        return source[: self.start] + self.replacement.encode() + source[self.end :]


class Verdict(Enum):
    """How a run of the tests ended."""

    SURVIVED = "survived"
    KILLED = "killed"
    TIMED_OUT = "killed by time"


def mutations(source: bytes) -> list[Mutation]:
    """Return every change of a Python file that is tried, in the order of the text."""
    return sorted(set(_Finder(source).found()))


class _Finder:
    """Finds the places in a file; its texts, annotations, decorators, assertions and logging are left as they are."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._line_starts = [0, *(at + 1 for at, byte in enumerate(source) if byte == ord("\n"))]

    def found(self) -> Iterator[Mutation]:
        yield from self._below(ast.parse(self._source))

    def _below(self, node: ast.AST) -> Iterator[Mutation]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_left_alone(child):
                    yield from self._of(child)
                    yield from self._below(child)

    def _of(self, node: ast.AST) -> Iterator[Mutation]:
        yield from self._operators(node)
        match node:
            case ast.Constant(value=bool(value)):
                yield self._whole(node, str(not value))
            case ast.Constant(value=int(value) | float(value)):
                yield self._whole(node, repr(value + 1))
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                    yield self._edit(self._start(test), self._start(test), "not ")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name) as function) if name in _CALLS:
                yield self._edit(self._end(function) - len(name), self._end(function), _CALLS[name])
            case ast.Expr(value=ast.Call()) | ast.Raise():
                yield self._whole(node, "pass")

    def _operators(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for before, operator, after in zip([left, *comparators], ops, comparators, strict=False):
                    yield from self._between(before, operator, after)
            case ast.BoolOp(op=operator, values=values):
                for before, after in itertools.pairwise(values):
                    yield from self._between(before, operator, after)
            case ast.BinOp(left=left, op=operator, right=right):
                yield from self._between(left, operator, right)
            case ast.AugAssign(target=target, op=operator, value=value):
                yield from self._between(target, operator, value)
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                yield self._edit(self._start(node), self._start(operand), "")

    def _between(self, before: ast.expr, operator: ast.AST, after: ast.expr) -> Iterator[Mutation]:
        if type(operator) not in _OPERATORS:
            return
        old, new = _OPERATORS[type(operator)]
        at = self._source.find(old.encode(), self._end(before), self._start(after))
        if at >= 0:
            yield self._edit(at, at + len(old), new)

    def _whole(self, node: ast.expr | ast.stmt, replacement: str) -> Mutation:
        return self._edit(self._start(node), self._end(node), replacement)

    def _edit(self, start: int, end: int, replacement: str) -> Mutation:
        return Mutation(start, end, replacement, self._source.count(b"\n", 0, start) + 1)

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._line_starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None, "set by the parser"
        assert node.end_col_offset is not None, "likewise"
        return self._line_starts[node.end_lineno - 1] + node.end_col_offset


def _is_left_alone(node: ast.AST) -> bool:
    """True if a node is never changed: it is text for people, or exists for the type checker."""
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="_log")))):
            return True
        case ast.Assign(value=ast.BinOp(op=ast.BitOr())):  # a type's other name
            return True
    return False


class Bench:
    """A copy of the tree in which the tests of one file run, each time in a new process."""

    def __init__(self, root: Path, copy: Path, file: Path, tests: Sequence[str]) -> None:
        """Copy the tree.

        Args:
            root: The tree.
            copy: Where the copy goes; must not exist.
            file: The file that is changed, relative to the tree.
            tests: Test files or folders, relative to the tree.
        """
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        self._copy, self._path, self._tests = copy, copy / file, list(tests)
        self._original = self._path.read_bytes()
        self._output = copy.with_suffix(".out")
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)

    def check(self) -> float:
        """Run the tests on the file as it is, and on one that cannot be imported; return the seconds of the first.

        Raises:
            SystemExit: The tests fail as it is, or do not import the file from the copy.
        """
        started = time.monotonic()
        if self._run(timeout_s=600.0) is not Verdict.SURVIVED:
            raise SystemExit(f"the tests do not pass as it is:\n{self._output.read_text(encoding='utf-8')[-4000:]}")
        seconds = time.monotonic() - started
        if self.judge(b"raise ImportError\n", timeout_s=600.0) is Verdict.SURVIVED:
            raise SystemExit("the tests pass without the file: they are not tests of it")
        return seconds

    def judge(self, mutant: bytes, timeout_s: float) -> Verdict:
        """Run the tests on a mutant."""
        self._path.write_bytes(mutant)
        try:
            return self._run(timeout_s)
        finally:
            self._path.write_bytes(self._original)

    def _run(self, timeout_s: float) -> Verdict:
        process = self._context.Process(target=_test, args=(self._copy, self._tests, self._output, timeout_s))
        process.start()
        assert process.pid is not None, "it was started"
        try:
            process.join(timeout_s)
            code = process.exitcode
        finally:
            with contextlib.suppress(ProcessLookupError):  # it leads a separate group, see `_test`
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
        if code is None or code == -signal.SIGXCPU:
            return Verdict.TIMED_OUT
        if 0 <= code < _EXIT_CODES:
            raise SystemExit("the tests did not run: see the message above")
        return Verdict.SURVIVED if code == _EXIT_CODES else Verdict.KILLED


def _test(copy: Path, tests: Sequence[str], output: Path, cpu_s: float) -> None:
    """Run tests in this process, which was forked for them, and end it with pytest's exit code."""
    import hypothesis
    import pytest

    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, -1))  # an endless loop ends by itself if nobody waits
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True  # a mutant may have the size and the second of the one before
    with output.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # That an example fails is enough; to find the smallest takes minutes.
    phases = [phase for phase in hypothesis.Phase if phase not in (hypothesis.Phase.shrink, hypothesis.Phase.explain)]
    hypothesis.settings.register_profile("mutants", phases=phases, deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("mutants")
    quiet = "-q -x -p no:cacheprovider -p no:faulthandler -W ignore::pytest.PytestAssertRewriteWarning"
    code = pytest.main([*quiet.split(), *tests])
    sys.stdout.flush()
    os._exit(_EXIT_CODES + int(code))


def survey(root: Path, file: Path, tests: Sequence[str], *, most: int, seed: int) -> tuple[int, int]:
    """Judge a sample of a file's mutants and print them; return how many were killed, of how many.

    Args:
        root: The tree.
        file: The file, relative to it.
        tests: Its tests, likewise, those that find most first: a run ends with the first failure.
        most: Most mutants tried.
        seed: Seed of the sample.
    """
    source = (root / file).read_bytes()
    found = mutations(source)
    sample = sorted(random.Random(seed).sample(found, min(most, len(found))))
    killed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        bench = Bench(root, Path(folder) / "tree", file, tests)
        seconds = bench.check()
        for mutation in sample:
            verdict = bench.judge(mutation.applied(source), timeout_s=4 * seconds + _LEAST_S)
            killed += verdict is not Verdict.SURVIVED
            old = source[mutation.start : mutation.end].decode()
            line = source.splitlines()[mutation.line - 1].decode().strip()
            print(
                f"{verdict.value:8} {file}:{mutation.line}: {old!r} -> {mutation.replacement!r} in {line}", flush=True
            )
    print(f"{file}: {killed} of {len(sample)} killed, {len(found)} possible", flush=True)
    return killed, len(sample)


def main() -> int:
    """Judge the mutants of the file on the command line; return 1 if one survived."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants", description=__doc__)
    parser.add_argument("file", type=Path, help="the file that is changed, relative to the root of the project")
    parser.add_argument("--tests", nargs="+", required=True, help="its tests, those that find most first")
    parser.add_argument("--most", type=int, default=16, help="most mutants tried (default: 16)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default: 1)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy and a run that is under way go too
    killed, tried = survey(ROOT, options.file, options.tests, most=options.most, seed=options.seed)
    return int(killed < tried)


if __name__ == "__main__":
    sys.exit(main())
