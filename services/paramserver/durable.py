"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tidemill.errors import ResourceExhausted

TEMPORARY = ".tmp"
"""Suffix of files that are not finished; a restart removes them."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_whole(contents: Mapping[Path, bytes]) -> None:
    """Write files under other names, wait until the disk has them, and only then rename them in order.

    The disk has the new names after `sync_folder`.

    Raises:
        OSError: The disk refused. If it was full, no file was renamed; nothing unfinished is left behind.
    """
    temporary = {path: path.with_name(path.name + TEMPORARY) for path in contents}
    try:
        for path, data in contents.items():
            with temporary[path].open("wb") as file:
                file.write(data)
                sync_file(file)
        for path in contents:
            temporary[path].replace(path)
    except OSError:
        for path in temporary.values():
            remove(path)
        raise


def sync_file(file: BinaryIO) -> None:
    """Flush a file's buffer and wait until the disk has it."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has a folder's new names."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file if it is there and the disk lets it go."""
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def full_disk_reported() -> Iterator[None]:
    """Turn the operating system's words for a full disk into `ResourceExhausted`."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise ResourceExhausted(
                f"the parameter server's disk is full ({error.strerror}); nothing was stored"
            ) from error
        raise
