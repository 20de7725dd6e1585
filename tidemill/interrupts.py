"""Ctrl-C while a command still imports its modules ends it at once, silently. Imports nothing that takes time.

Python would print a traceback of whichever import it was in. A shell sees exit status 130 either way.
"""

from __future__ import annotations

import signal
import sys


def end_silently() -> None:
    """From now on Ctrl-C ends this process like any other program; an ignored SIGINT stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _release()


def hold() -> None:
    """Delay Ctrl-C until the next program of this process calls `end_silently`, for a call of `exec`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def raise_again() -> None:
    """End `end_silently`: from now on Ctrl-C raises KeyboardInterrupt in the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _release()


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def main() -> None:
    """Run a module as `python -m MODULE ARGUMENTS` would; Ctrl-C during its imports is silent."""
    end_silently()
    import runpy

    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
