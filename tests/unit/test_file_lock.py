"""Locks on files, and file systems that have none."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.naming import naming
from tidemill.errors import FatalError
from tidemill.file_lock import lock
from tidemill.services.launcher.run.folder import RunFolder, is_running
from tidemill.services.paramserver.version_store import VersionStore
from tidemill.services.replay.log.segments import LogFolder


def test_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    """Another descriptor of the file, as another process has one, does not get it before."""
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert lock(first, tmp_path / "lock")
    assert not lock(second, tmp_path / "lock")
    os.close(first)
    assert lock(second, tmp_path / "lock")
    os.close(second)


def _store(folder: Path) -> VersionStore:
    return VersionStore(folder, keep_versions=1, max_blob_bytes=1, max_tags=1, max_fetch_bytes=1)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
@pytest.mark.parametrize("use", [LogFolder, RunFolder, _store])
def test_file_system_without_locks_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], object], number: int
) -> None:
    """Nobody else is said to use the folder."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(FatalError, match=naming(os.strerror(number))) as raised:
        use(tmp_path)
    assert str(raised.value).startswith(f"cannot lock {tmp_path}")
    assert not is_running(tmp_path)
