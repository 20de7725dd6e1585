"""How a test waits for what another thread or process brings about, where there is no event to wait on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

WAIT_S = 300.0
"""Only ever reached by a machine that is far too busy, or a failure."""


def wait_until(
    condition: Callable[[], object],
    what: str,
    timeout_s: float = WAIT_S,
    *,
    longest_pause_s: float = 0.1,
    describe: Callable[[], str] = str,
) -> None:
    """Ask again until a condition holds, at first after 5 ms, then ever less often.

    Args:
        condition: what is asked.
        what: what is waited for, for the message.
        timeout_s: how long.
        longest_pause_s: between two questions; more where a question is expensive.
        describe: how things stand, for the message.

    Raises:
        AssertionError: it did not hold within `timeout_s`.
    """
    deadline, pause, pause_s = time.monotonic() + timeout_s, threading.Event(), 0.005
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}\n{describe()}".rstrip()
        pause.wait(pause_s)
        pause_s = min(1.3 * pause_s, longest_pause_s)
