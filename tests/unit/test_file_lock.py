"""Locks on files, and file systems that have none."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.naming import naming
from tests.support.waiting import WAIT_S
from tidemill.errors import FatalError
from tidemill.file_lock import lock, unlock
from tidemill.services.launcher.run.folder import RunFolder, is_running
from tidemill.services.paramserver.version_store import VersionStore
from tidemill.services.replay.log.segments import LogFolder


def test_lock_is_held_until_it_is_given_back(tmp_path: Path) -> None:
    """Another descriptor of the file, as another process has one, does not get it before."""
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert lock(first, tmp_path / "lock")
    assert not lock(second, tmp_path / "lock")
    unlock(first)
    assert lock(second, tmp_path / "lock")
    unlock(second)


@pytest.mark.parametrize("ends", ["given back", "killed"])
def test_lock_does_not_live_on_in_a_forked_child(tmp_path: Path, ends: str) -> None:
    """A child that runs on keeps nobody from the folder, whether its parent unlocked the folder or was killed."""
    code = """
import os, signal, sys
from pathlib import Path
from tidemill.services.replay.log.segments import LogFolder
folder = LogFolder(Path(sys.argv[1]))
if os.fork() == 0:
    print(os.getpid(), flush=True)
    signal.pause()
sys.stdin.readline()
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
folder.close()
"""
    command = [sys.executable, "-c", code, str(tmp_path), ends]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            with pytest.raises(FatalError, match="another replay service uses"):
                LogFolder(tmp_path)
            parent.stdin.close()
            parent.wait(WAIT_S)
            LogFolder(tmp_path).close()
        finally:
            os.kill(child, signal.SIGKILL)


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
