"""The log of a service, which its environment may fill."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.services.launcher.supervise.child import Child


class _Ended:
    pid, returncode = 1, 0

    async def wait(self) -> int:
        return 0

    def send_signal(self, signal: int, /) -> None:
        raise AssertionError(signal)


_WRITER = "import os, sys; [os.write(1, (line + 'x' * 90 + chr(10)).encode()) for line in sys.stdin.read().split()]"


def test_log_that_is_too_long_is_moved_and_goes_on_from_its_start(tmp_path: Path) -> None:
    """What was written last is there, in one file or the other, and the last lines are of the present file."""
    file = tmp_path / "actor-0.log"
    file.write_text("an earlier life\n")
    with file.open("ab") as log:
        child = Child(_Ended(), file, log_start=log.tell())
        process = subprocess.Popen([sys.executable, "-c", _WRITER], stdin=subprocess.PIPE, stdout=log, text=True)
        log.write(b"one\ntwo\n")
        log.flush()
        assert child.last_lines(8) == ["one", "two"]
        child.bound_log(1000)
        assert file.read_text().endswith("two\n")
        child.bound_log(10)
        assert file.read_text() == ""
        assert (tmp_path / "actor-0.log.1").read_text() == "an earlier life\none\ntwo\n"
        process.communicate("three four", 60)
    assert [line.rstrip("x") for line in child.last_lines(8)] == ["three", "four"]
    assert file.stat().st_size < 200  # no hole where the old lines were


def test_log_that_is_not_there_is_left(tmp_path: Path) -> None:
    """Somebody has removed it."""
    Child(_Ended(), tmp_path / "actor-0.log").bound_log(10)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "failing, number, is_emptied",
    [("copyfile", errno.ENOSPC, True), ("copyfile", errno.EMFILE, False), ("stat", errno.EIO, False)],
)
def test_log_that_cannot_be_moved_costs_no_more_than_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, number: int, is_emptied: bool
) -> None:
    """The lines moved before stay; the present ones go only where a full disk has no room for a copy."""
    file, moved = tmp_path / "actor-0.log", tmp_path / "actor-0.log.1"
    file.write_text("present\n")
    moved.write_text("moved before\n")

    def fails(_: Path, copy: Path | None = None) -> None:
        if copy is not None:
            copy.write_text("pres")
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(shutil if failing == "copyfile" else Path, failing, fails)
        Child(_Ended(), file).bound_log(3)
    assert file.read_text() == ("" if is_emptied else "present\n")
    assert moved.read_text() == "moved before\n"
    assert len(list(tmp_path.iterdir())) == 2


def test_log_that_is_not_there_has_no_last_lines(tmp_path: Path) -> None:
    """Somebody has removed it, or its folder."""
    assert Child(_Ended(), tmp_path / "logs" / "actor-0.log").last_lines(8) == []
