"""A folder of another user, for tests that root may run, to whom every folder is open."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def deny(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make a folder that this process may neither enter nor write to."""
    folder.mkdir()
    stat, access = os.stat, os.access

    def refusing(path: Any, *arguments: Any, **options: Any) -> os.stat_result:  # noqa: ANN401 - what os.stat takes
        if not isinstance(path, int) and folder in Path(os.fsdecode(path)).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr("os.stat", refusing)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != folder and access(path, mode))
