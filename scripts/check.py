"""Run every check that needs no test: what `make check` and CI run.

All checks run even after one failed, so that one run shows everything; the exit code is 1 if any failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CHECKS = {
    "format": ("ruff", "format", "--check", "--quiet"),
    "lint": ("ruff", "check", "--quiet"),
    "types": ("mypy", "--no-error-summary"),
    "imports": ("lint-imports", "--no-logo"),
    "protos": ("buf", "lint"),
    "breaking": ("python", "-m", "scripts.check_breaking"),
    "stubs": ("python", "-m", "scripts.protos", "--check"),
    "api": ("python", "-m", "scripts.api_reference", "--check"),
    "config": ("python", "-m", "scripts.docs.configuration", "--check"),
    "wire": ("python", "-m", "scripts.docs.wire", "--check"),
    "chart": ("python", "-m", "scripts.helm_chart", "--check"),
    "links": ("python", "-m", "scripts.check_links"),
    "words": ("python", "-m", "scripts.check_words"),
    "locks": ("python", "-m", "pip", "check"),
}
"""Name of each check and its command, the program taken from the environment this script runs in."""


def run(name: str) -> bool:
    """Run one check; print its verdict, and what it said if it failed."""
    program, *arguments = CHECKS[name]
    command = [str(Path(sys.executable).parent / program), *arguments]
    started = time.monotonic()
    # Without a terminal's width, tools wrap their messages at 80 columns.
    environment = os.environ | {"COLUMNS": "200"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    passed = ended.returncode == 0
    print(f"{name:9} {'ok' if passed else 'FAILED':6} {time.monotonic() - started:5.1f} s", flush=True)
    if not passed:
        print(f"$ {' '.join(CHECKS[name])}\n{ended.stdout}{ended.stderr}", flush=True)
    return passed


def main() -> int:
    """Run the checks named on the command line, or all; return the exit code."""
    names = sys.argv[1:] or list(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"no check is called {', '.join(unknown)}; there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    failed = [name for name in names if not run(name)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
