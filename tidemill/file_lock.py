"""The lock that a process holds on an open file until it closes it or ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tidemill.errors import FatalError


def lock(descriptor: int, path: Path, *, wait: bool = False) -> bool:
    """Lock an open file; return False if another process holds the lock.

    Args:
        descriptor: The file.
        path: Its path, for the message.
        wait: Whether to wait until the other process unlocks it.

    Raises:
        FatalError: Its file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        raise FatalError(f"cannot lock {path}: {error.strerror}; mount its file system with locks") from error
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is not there; wait for the process that holds it.

    Args:
        path: The file; its folder exists.

    Raises:
        FatalError: Its file system has no locks.
        OSError: It cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock(descriptor, path, wait=True)
        yield
    finally:
        os.close(descriptor)
