"""`python -m tidemill.child MODULE ...`: runs a module in a process that ends when the one that started it does.

The kernel is asked before anything else is imported: importing torch takes seconds, in which the starter may die. It
sends SIGKILL, which ends a frozen process too. What a service has promised to keep survives that.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PARENT_VARIABLE = "TIDEMILL_PARENT_PID"
"""Environment variable by which a process makes those it starts end when it does."""

WAIT = "--wait"
"""First argument of a process on standby: it imports what the module does, and runs it when a byte comes in."""

_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> None:
    """Run a module as `python -m` would; raises SystemExit with its exit code."""
    _end_with_parent()
    # Asked to finish while it imports, a service would die of the signal: it waits until the service says what it does.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    words = list(argv)
    waits = words[0] == WAIT
    module, *arguments = words[1:] if waits else words
    if waits:
        _import_ahead(module)
        _await_word()
    import runpy

    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _import_ahead(module: str) -> None:
    """Import what a module does, of a package its `__main__`."""
    import importlib.util

    found = importlib.util.find_spec(module)
    is_package = found is not None and found.submodule_search_locations is not None
    name = f"{module}.__main__" if is_package else module
    importlib.import_module(name)
    del sys.modules[name]  # so that it is run as any other


def _await_word() -> None:
    """Wait for a byte from standard input, which is nothing from then on; ends the process if none will come."""
    if not os.read(0, 1):
        sys.exit(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _end_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent ends; end now if it already has."""
    parent = os.environ.pop(PARENT_VARIABLE, "")  # what is asked here `process.run` need not ask again, more mildly
    if not parent:
        return
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before the request took effect
        sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
