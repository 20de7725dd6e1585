"""Folders for files of a moment."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tidemill.errors import FatalError


def temporary_folder(purpose: str, parent: str | Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """Make a folder that goes with the block, named after its purpose.

    Args:
        purpose: What it is for.
        parent: The folder to make it in; None takes the system's temporary folder.

    Raises:
        FatalError: No temporary folder can be written to, or not this one.
    """
    try:
        return tempfile.TemporaryDirectory(prefix=f"tidemill-{purpose}-", dir=parent)
    except OSError as error:
        where, advice = ("", "set TMPDIR to") if parent is None else (f" in {parent}", "name")
        raise FatalError(
            f"cannot make a temporary folder{where}: {error.strerror}; {advice} a folder that can be written to"
        ) from error
