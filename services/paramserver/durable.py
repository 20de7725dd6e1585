"""Files that are there whole or not at all, and documents that carry their own checksum."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tidemill.errors import DataLoss, ResourceExhausted

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


def seal(content: dict[str, Any]) -> bytes:
    """Return a document as JSON with its SHA-256; the inverse of `unseal`."""
    return (json.dumps({"sha256": _digest(content), "content": content}, indent=1) + "\n").encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Return the document of a sealed file.

    Raises:
        DataLoss: It is torn, flipped or not a sealed document.
    """
    try:
        document = json.loads(data)
        content, digest = document["content"], document["sha256"]
        is_whole = isinstance(content, dict) and _digest(content) == digest
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataLoss(f"it is not a sealed document: {error}") from error
    if not is_whole:
        raise DataLoss("it does not match its SHA-256")
    return dict(content)


def _digest(content: object) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
