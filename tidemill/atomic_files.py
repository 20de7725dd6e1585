"""Files that are there whole or not at all, whatever ends the process that writes them.

A file is written under another name beside its own and renamed into place, so a reader finds the former one or the new
one. With `sync` the disk has the bytes before the rename, and the name before the call returns: the file outlives a
loss of power, too.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tidemill import linux

TEMPORARY = ".tmp"
"""Suffix of files that are not finished; one that a crash left behind may be removed."""

_ABANDONED_S = 86400.0
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)


@contextlib.contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Give the block a path to write to, and rename that to `path` at its end; after an error remove it instead.

    Each call has its own path: of processes that write the same file at the same time the last one wins.

    Args:
        path: The file to be made or replaced; its folder exists.
        sync: Whether to wait until the disk has the file and its name.

    Raises:
        OSError: The disk refused; the former file is untouched, unless only waiting for the name failed.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    _remove_abandoned(path)
    try:
        yield temporary
        if sync:
            _sync(temporary, os.O_RDONLY)
        temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise
    if sync:
        sync_folder(path.parent)


def write_atomically(path: Path, data: bytes | str, *, sync: bool = True) -> None:
    """Make or replace a file, whole or not at all; text becomes UTF-8.

    Args:
        path: The file; its folder exists.
        data: All of its content.
        sync: Whether to wait until the disk has the file and its name.

    Raises:
        OSError: As `replacing`.
    """
    with replacing(path, sync=sync) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def write_all_atomically(contents: Mapping[Path, bytes]) -> None:
    """Make or replace files, each whole or not at all, in order, and none before the disk has the bytes of all.

    Raises:
        OSError: The disk refused. If it was full, no file was renamed; nothing unfinished is left behind.
    """
    temporary = {path: path.with_name(path.name + TEMPORARY) for path in contents}
    try:
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(temporary[path].open("wb")) for path in contents]
            for file, data in zip(files, contents.values(), strict=True):
                file.write(data)
                file.flush()
                linux.begin_sync(file.fileno())  # so that the disk writes all of them together
            for file in files:
                linux.sync(file.fileno())
        for path in contents:
            temporary[path].replace(path)
    except BaseException:
        for path in temporary.values():
            remove(path)
        raise
    for folder in dict.fromkeys(path.parent for path in contents):
        sync_folder(folder)


def append_whole(path: Path, data: bytes | str, *, sync: bool = True) -> None:
    """Append to a file, which is made if missing; after an error it is as long as it was. Text becomes UTF-8.

    Args:
        path: The file; its folder exists.
        data: What it ends with afterwards.
        sync: Whether to wait until the disk has it.

    Raises:
        OSError: The disk refused.
    """
    with path.open("ab", buffering=0) as file:  # a buffer would write the rest when it is closed
        end = file.seek(0, os.SEEK_END)
        left = memoryview(data.encode() if isinstance(data, str) else data)
        try:
            while left:
                left = left[file.write(left) :]
            if sync:
                linux.sync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), end)
            raise


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; the disk has their names before the call returns.

    Of folders that a process made before it was killed only the last can be without its name on the disk: each is made
    when those above it are safe. So the name of the deepest that is there already is waited for, too.

    Raises:
        OSError: The disk refused, or there is something else of this name.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    deepest = missing[-1].parent if missing else path
    with contextlib.suppress(PermissionError):  # what this user may not even read, this user did not make
        sync_folder(deepest.resolve().parent)
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)
    path.mkdir(exist_ok=True)  # refuses a file


def sync_file(file: BinaryIO) -> None:
    """Flush a file's buffer and wait until the disk has it."""
    file.flush()
    linux.sync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has a folder's new names, unless its file system cannot be asked to.

    autofs and VirtualBox's shared folders cannot: they refuse to flush a folder.
    """
    try:
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def is_there(path: Path) -> bool:
    """Whether a file or folder is there, as `Path.exists` says before Python 3.14, which takes every error for a no.

    Raises:
        OSError: The system cannot say.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def remove(path: Path) -> None:
    """Remove a file if it is there and the disk lets it go."""
    with contextlib.suppress(OSError):
        path.unlink()


def is_disk_full(error: OSError) -> bool:
    """True if a write failed because the disk, the quota or the file size limit is exhausted."""
    return error.errno in _DISK_FULL


def _remove_abandoned(path: Path) -> None:
    """Remove what writers of a file left that were killed; those that may still write are left alone."""
    for temporary in path.parent.glob(f"{glob.escape(path.name)}.*{TEMPORARY}"):
        with contextlib.suppress(OSError):
            if time.time() - temporary.stat().st_mtime > _ABANDONED_S:
                temporary.unlink()


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        linux.sync(descriptor)
    finally:
        os.close(descriptor)
