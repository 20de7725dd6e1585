"""The lock that a process holds on an open file until it closes it or ends."""

from __future__ import annotations

import fcntl
from pathlib import Path

from tidemill.errors import FatalError


def lock(descriptor: int, path: Path) -> bool:
    """Lock an open file; return False if another process holds the lock.

    Args:
        descriptor: The file.
        path: Its path, for the message.

    Raises:
        FatalError: Its file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise FatalError(f"cannot lock {path}: {error.strerror}; mount its file system with locks") from error
    return True
