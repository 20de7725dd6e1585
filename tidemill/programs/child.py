"""A program that runs a module and ends with its parent process: `python -m tidemill.programs.child MODULE ...`.

The request is made before anything else is imported: importing torch takes seconds, in which the starter may die. The
kernel then sends SIGKILL, which ends a frozen process too. What a service has promised to keep survives that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from tidemill.parent import end_with_parent


def main(argv: Sequence[str]) -> None:
    """Run a module as `python -m` would; raises SystemExit with its exit code."""
    end_with_parent()
    module, *arguments = argv
    run_module(module, arguments)


def run_module(module: str, arguments: Sequence[str]) -> None:
    """Run a service as `python -m` would, with arguments; raises SystemExit with its exit code."""
    hold_requests_to_finish()
    import runpy

    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def hold_requests_to_finish() -> None:
    """Let SIGUSR1 wait until the service says what it does: asked to finish while it imports, it would die of it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})


def await_word() -> None:
    """Wait for a byte from standard input, which is nothing from then on; end the process if none will come."""
    if not os.read(0, 1):
        sys.exit(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


if __name__ == "__main__":
    main(sys.argv[1:])
