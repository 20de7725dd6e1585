"""The lock that a process holds on an open file until it gives it back or ends.

A forked child has the file open, too, and would keep the lock for as long as it runs: it closes the file at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tidemill.errors import FatalError

_held: dict[int, tuple[int, int]] = {}  # device and inode of the locked files, by descriptor


def lock(descriptor: int, path: Path, *, wait: bool = False) -> bool:
    """Lock an open file; return False if another process holds the lock. `unlock` gives it back.

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
    _held[descriptor] = _identity(descriptor)
    return True


def open_locked(
    path: Path, access: int = os.O_RDWR | os.O_CREAT, *, mode: int = 0o644, wait: bool = False
) -> int | None:
    """Open a file and lock it; return its descriptor for `unlock`, or None if another process holds the lock.

    Args:
        path: The file.
        access: How it is opened: flags of `os.open`.
        mode: Who may open one that is made.
        wait: Whether to wait until the other process unlocks it.

    Raises:
        FatalError: Its file system has no locks.
        OSError: It cannot be opened.
    """
    descriptor = os.open(path, access | os.O_CLOEXEC, mode)
    is_locked = False
    try:
        is_locked = lock(descriptor, path, wait=wait)
    finally:
        if not is_locked:
            os.close(descriptor)
    return descriptor if is_locked else None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is not there; wait for the process that holds it.

    Args:
        path: The file; its folder exists.

    Raises:
        FatalError: Its file system has no locks.
        OSError: It cannot be opened.
    """
    descriptor = open_locked(path, mode=0o600, wait=True)
    assert descriptor is not None  # it has waited
    try:
        yield
    finally:
        unlock(descriptor)


def unlock(descriptor: int) -> None:
    """Give a lock back and close its file; a forked child has neither."""
    if _held.pop(descriptor, None) is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that is just being forked may still have it open
        os.close(descriptor)


def _close_all() -> None:
    for descriptor, identity in _held.items():
        with contextlib.suppress(OSError):
            if _identity(descriptor) == identity:  # or somebody else closed it
                os.close(descriptor)
    _held.clear()


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


os.register_at_fork(after_in_child=_close_all)
