"""Folders for files of a moment."""

from __future__ import annotations

import tempfile

from tidemill.errors import FatalError


def temporary_folder(purpose: str) -> tempfile.TemporaryDirectory[str]:
    """Make a folder that goes with the block, named after its purpose.

    Raises:
        FatalError: No temporary folder can be written to.
    """
    try:
        return tempfile.TemporaryDirectory(prefix=f"tidemill-{purpose}-")
    except OSError as error:
        raise FatalError(
            f"cannot make a temporary folder: {error.strerror}; set TMPDIR to a folder that can be written to"
        ) from error
