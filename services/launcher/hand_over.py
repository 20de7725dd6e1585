"""Commands that are another service's own: its module takes this process' place."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence


def hand_over_to(module: str) -> Callable[[Sequence[str]], int]:
    """Return a command that becomes `python -P -m MODULE ARGUMENTS`.

    The module is started by its name because no service imports another; the process id, the terminal and the
    signals stay the same, so `tidemill actor` behaves as `python -m tidemill.services.actor`.
    """

    def command(arguments: Sequence[str]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])

    return command
