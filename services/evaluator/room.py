"""Waits for room on a full disk: what was measured is worth more than the time until someone makes room."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import structlog

from tidemill.atomic_files import is_disk_full

_RETRY_S = 2.0
_log = structlog.get_logger()

Returned = TypeVar("Returned")


def when_there_is_room(write: Callable[[], Returned], stop: threading.Event, retry_s: float = _RETRY_S) -> Returned:
    """Call `write` again until the disk is no longer full; return what it returns.

    Args:
        write: Writes all or nothing.
        stop: Ends the wait.
        retry_s: Pause before each further attempt, in seconds.

    Raises:
        OSError: The disk refused for another reason, or was still full when `stop` was set.
    """
    has_told = False
    while True:
        try:
            return write()
        except OSError as error:
            if not is_disk_full(error) or stop.wait(0.0):
                raise
            if not has_told:
                has_told = True
                _log.warning("disk full, waiting for free space", reason=str(error))
        stop.wait(retry_s)
