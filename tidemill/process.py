"""What every process does alike: stop on a signal, end with its launcher, explain a fatal error."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

from tidemill.errors import ConfigError, TidemillError

PARENT_VARIABLE = "TIDEMILL_PARENT_PID"
"""Environment variable by which a launcher tells its children to end when it does."""

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1


def run(service: str, main: Callable[[], int]) -> int:
    """Run a process's main function; return its exit code.

    Returns:
        What `main` returned; 1 after a Tidemill error, 2 after a wrong setting, each explained in one line on
        standard error. Other exceptions are faults of the program and keep their traceback.
    """
    _end_with_parent()
    try:
        return main()
    except ConfigError as error:
        print(f"{service}: {error}", file=sys.stderr)
        return 2
    except TidemillError as error:
        print(f"{service}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def stop_event() -> threading.Event:
    """Return an event that SIGTERM or Ctrl-C sets; a second signal ends the process at once."""
    event = threading.Event()

    def stop(signal_number: int, _frame: object) -> None:
        if event.is_set():
            os._exit(128 + signal_number)
        event.set()

    for number in _STOP_SIGNALS:
        signal.signal(number, stop)
    return event


async def stop_requested() -> None:
    """Wait for SIGTERM or Ctrl-C on the running event loop."""
    requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, requested.set)
    await requested.wait()


def _end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the launcher dies, so that a killed launcher leaves no orphan."""
    parent = os.environ.get(PARENT_VARIABLE)
    if not parent or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # the launcher died before the request took effect
        sys.exit(0)
