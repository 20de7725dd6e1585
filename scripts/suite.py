"""The whole test suite with four workers. Tests that failed are tried once more, without others, if they are few.

Servers, processes, containers and training share the machine with three other workers there, and on a busy one a bound
may be missed that holds everywhere else. A test that fails beside others and passes alone is named at the end: look at
it, its bound is too tight or it has found a race. Order and seeds are the same in both tries, so a failure that depends
on them is found twice. In .ci/bare the unit tests run without such company, and have no second try.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_CHAPTERS = "tests/compose/test_stack.py"
"""Each of its tests needs what those before it have left: one that failed is tried again with all of them."""
_MOST = 3
"""With more failures than this, the machine is not the cause."""
_TESTS_FAILED = 1
"""pytest's exit code when tests failed, and nothing else went wrong."""


def may_be_tried_again(failed: Sequence[str]) -> bool:
    """True if the tests of these ids are few."""
    return 0 < len(failed) <= _MOST


def run(root: Path, *arguments: str) -> int:
    """Run the suite of a folder with further arguments for pytest; return the exit code."""
    # One of four workers waits for containers most of the time, and two or three for processes: two cores are busy.
    in_turns = ("--cache-clear", "--numprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder")
    code = _pytest(root, *in_turns, *arguments)
    failed = _failed(root) if code == _TESTS_FAILED else []
    if not may_be_tried_again(failed):
        return code
    print(f"\nfailed beside other tests, tried once more alone: {', '.join(failed)}", flush=True)
    code = _pytest(root, *sorted({_CHAPTERS if test.startswith(f"{_CHAPTERS}::") else test for test in failed}))
    if code == 0:
        print(f"\npassed alone, failed beside other tests: {', '.join(failed)}", flush=True)
    return code


def _pytest(root: Path, *arguments: str) -> int:
    # As in the Makefile: without byte code every process of a test would compile what it imports, torch most of all.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode


def _failed(root: Path) -> list[str]:
    try:
        text = (root / ".pytest_cache" / "v" / "cache" / "lastfailed").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return sorted(json.loads(text))


if __name__ == "__main__":
    sys.exit(run(Path(__file__).resolve().parent.parent, *sys.argv[1:]))
