"""Reads an encoding from the parameter server's folder, where that is on this machine.

Sent in pieces, each byte is copied half a dozen times on its way through two processes; the file is in the disk's cache
already, once for all that read it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from tidemill.params.version import Encoding


class UnreadableFile(Exception):
    """The file cannot be read here, or is not what the server says; its bytes must be sent.

    Attributes:
        may_pass: Whether the next version's file may be readable: not where the server's folder cannot be seen.
    """

    def __init__(self, message: str, *, may_pass: bool) -> None:
        """Take what is wrong, and whether it may pass."""
        super().__init__(message)
        self.may_pass = may_pass


def read_encoding(path: str, encoding: Encoding) -> bytes:
    """Return the bytes of an encoding's file, checked against its size and SHA-256.

    Args:
        path: Where the server says that it is. Nothing but a regular file of the right size is read.
        encoding: What the server says of it.

    Raises:
        UnreadableFile: It cannot be read, or is another file.
    """
    try:
        # A pipe would keep an open() waiting that may block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size != encoding.size_bytes:
                raise UnreadableFile(f"{path} is another file", may_pass=False)
            blob = file.readall()
    except (OSError, ValueError) as error:  # the latter for a path with a null byte
        is_retained = isinstance(error, FileNotFoundError) and Path(path).parent.is_dir()
        raise UnreadableFile(f"cannot read {path}: {error}", may_pass=is_retained) from error
    if hashlib.sha256(blob).digest() != encoding.sha256:
        raise UnreadableFile(f"{path} does not match its SHA-256", may_pass=False)
    return blob
