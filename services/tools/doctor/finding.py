"""Findings of the checks of `tidemill doctor`, and calls of other programs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        mark: `ok`, `note` (something is missing that not every run needs) or `FAIL`.
        text: What was found.
        advice: What to do; empty if nothing.
    """

    mark: str
    text: str
    advice: str = ""


def says(*command: str) -> str | None:
    """Return the output of a command, stripped; None if it is missing, fails or takes two minutes."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL
        )
    except (subprocess.SubprocessError, OSError):
        return None
    return answer.stdout.strip()


def python_says(code: str) -> str | None:
    """Return the output of code in a separate process: the launcher itself never imports torch."""
    return says(sys.executable, "-c", code)
