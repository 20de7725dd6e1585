"""Has torchrun fork its ranks, from the fork server that its process was given (ADR 0050)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from tidemill.programs.fork_client import ForkClient, ForkedPopen
from tidemill.programs.fork_server import Order

CHILD = "tidemill.programs.child"
"""Module through which ranks are started, so that they end with torchrun from the start."""

_COMMAND = (sys.executable, "-u", "-m", CHILD)


def fork_ranks(forks: ForkClient) -> None:
    """Fork what torchrun would start as `python -u -m tidemill.programs.child MODULE ...`, if it can be forked.

    A rank whose output torchrun keeps apart, or that it binds to a processor, is a program of its own as ever.
    """
    start: Any = SubprocessHandler._popen

    def popen(
        handler: SubprocessHandler, args: Sequence[str], env: dict[str, str]
    ) -> subprocess.Popen[bytes] | ForkedPopen:
        count, is_apart = len(_COMMAND), handler._stdout is not None or handler._stderr is not None
        if tuple(args[:count]) != _COMMAND or is_apart:
            started: subprocess.Popen[bytes] = start(handler, args, env)
            return started
        with os.fdopen(os.dup(2), "wb") as output:
            forked = forks.fork(Order(args[count], args[count + 1 :], env), output)
        return forked or start(handler, args, env)

    SubprocessHandler._popen = popen  # type: ignore[assignment, method-assign] # torch has no other place for it
