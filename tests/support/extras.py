"""The packages of `make .venv-extras/.installed`, which tests import in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launched import BOUND_S, ROOT

EXTRAS = ROOT / ".venv-extras"


def needs_extra(package: str = ".installed") -> pytest.MarkDecorator:
    """Skip a test where a package is missing; without a name, where any may be."""
    return pytest.mark.skipif(not (EXTRAS / package).exists(), reason="needs make .venv-extras/.installed")


def with_extras(**variables: str) -> dict[str, str]:
    """Return an environment with more variables, in which Python finds the packages beside the repository."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{EXTRAS}", **variables}


def run_with_extras(*arguments: str, cwd: str | Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python to its end in that environment."""
    command, environment = [sys.executable, *arguments], with_extras(**variables)
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=BOUND_S, check=False
    )
