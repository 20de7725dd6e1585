"""How a test waits for what another thread or process brings about, where there is no event to wait on."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_WAIT_S = 60.0
_MOST_CROWDED = 5.0

_raised: list[str] = []
"""Exceptions that nobody has caught in threads of the running test."""


def crowd() -> float:
    """Return how many want each core, the suite's workers included: at least 1, at most 5."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return min(max(1.0, workers, os.getloadavg()[0] / (os.cpu_count() or 1)), _MOST_CROWDED)


def longest_wait_s() -> float:
    """Return the longest wait for what works: a minute, times how many want each core."""
    return _WAIT_S * crowd()


WAIT_S = longest_wait_s()
"""Only ever reached by a machine that is far too busy, or a failure."""


@contextmanager
def noting_thread_errors() -> Iterator[None]:
    """Have `wait_until` fail as soon as a thread has ended with an exception: what it would do will not come."""
    hook = threading.excepthook

    def note(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_type is not SystemExit:
            error = (arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
            _raised.append("".join(traceback.format_exception(*error)))
        hook(arguments)

    _raised.clear()
    threading.excepthook = note
    try:
        yield
    finally:
        threading.excepthook = hook
        _raised.clear()


def wait_until(
    condition: Callable[[], object],
    what: str,
    timeout_s: float | None = None,
    *,
    longest_pause_s: float = 0.1,
    describe: Callable[[], str] = str,
    failure: Callable[[], str] = str,
) -> None:
    """Ask again until a condition holds, at first after 5 ms, then ever less often.

    Args:
        condition: what is asked.
        what: what is waited for, for the message.
        timeout_s: how long; `longest_wait_s` if None, which grows with the machine's load.
        longest_pause_s: between two questions; more where a question is expensive.
        describe: how things stand, for the message.
        failure: why the condition can no longer come to hold, such as a process that has ended and its log.

    Raises:
        AssertionError: it did not hold within `timeout_s`, or can no longer, or a thread has ended with an exception.
    """
    started, pause, pause_s = time.monotonic(), threading.Event(), 0.005
    while not condition():
        reason = failure() or "".join(_raised)
        assert not reason, f"{what}: it will not come\n{reason}\n{describe()}".rstrip()
        limit_s = longest_wait_s() if timeout_s is None else timeout_s
        assert time.monotonic() - started < limit_s, f"not within {limit_s:g} s: {what}\n{describe()}".rstrip()
        pause.wait(pause_s)
        pause_s = min(1.3 * pause_s, longest_pause_s)
