"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.full_disk import no_file_longer_than
from tidemill.atomic_files import (
    append_whole,
    is_disk_full,
    is_there,
    make_folder,
    replacing,
    write_all_atomically,
    write_atomically,
)
from tidemill.services.replay.log.segments import LogFolder


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of every file and folder the disk is waited for."""
    flushed, fsync = [], os.fsync

    def noted(descriptor: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return flushed


def _refuse(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Have the disk refuse the `call`-th flush for lack of space."""
    calls = [0]

    def full(_descriptor: int) -> None:
        calls[0] += 1
        if calls[0] == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)


def test_file_is_made_and_replaced(tmp_path: Path) -> None:
    """Bytes as they are, text as UTF-8; nothing else stays in the folder."""
    file = tmp_path / "file"
    write_atomically(file, b"\xff")
    assert file.read_bytes() == b"\xff"
    write_atomically(file, "ü")
    assert file.read_bytes() == "ü".encode()
    assert _names(tmp_path) == ["file"]


def test_text_is_appended_whole_or_not_at_all(tmp_path: Path) -> None:
    """What was written before the disk was full is taken back, and what was not is not written afterwards."""
    file = tmp_path / "rows.csv"
    append_whole(file, "first\n")
    with no_file_longer_than(12), pytest.raises(OSError, match="File too large"):
        append_whole(file, "too long\n")
    assert file.read_bytes() == b"first\n"
    append_whole(file, "ü\n")
    append_whole(file, b"\xff", sync=False)
    assert file.read_bytes() == "first\nü\n".encode() + b"\xff"


def test_disk_is_waited_for_unless_it_need_not_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the bytes, then the folder with the new name; without `sync` neither."""
    flushed = _flushed(monkeypatch)
    write_atomically(tmp_path / "file", b"x")
    assert [name.split(".")[0] for name in flushed] == ["file", tmp_path.name]
    write_atomically(tmp_path / "file", b"y", sync=False)
    assert len(flushed) == 2


def test_fault_while_writing_leaves_the_former_file(tmp_path: Path) -> None:
    """Whatever ends the block, what was written so far is removed."""
    file = tmp_path / "file"
    write_atomically(file, b"former")
    with pytest.raises(KeyboardInterrupt), replacing(file) as temporary:  # noqa: PT012 - the block is what is tested
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt
    assert (file.read_bytes(), _names(tmp_path)) == (b"former", ["file"])


def test_two_writers_of_a_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """As two machines that keep the settings of one run: the last one wins, and neither fails."""
    file = tmp_path / "file"
    with replacing(file) as first:
        first.write_bytes(b"first")
        write_atomically(file, b"second")
        assert file.read_bytes() == b"second"
    assert (file.read_bytes(), _names(tmp_path)) == (b"first", ["file"])


def test_what_a_killed_writer_left_is_removed_a_day_later(tmp_path: Path) -> None:
    """Not before, for it may still be written."""
    for name in ("file.0.tmp", "file.1.tmp", "other.0.tmp"):
        (tmp_path / name).touch()
    for name in ("file.0.tmp", "other.0.tmp"):
        os.utime(tmp_path / name, (0, 0))
    write_atomically(tmp_path / "file", b"x")
    assert _names(tmp_path) == ["file", "file.1.tmp", "other.0.tmp"]


def test_full_disk_leaves_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is raised, and known as one for want of room."""
    file = tmp_path / "file"
    write_atomically(file, b"former")
    _refuse(monkeypatch, 1)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(file, b"new")
    assert is_disk_full(caught.value)
    assert not is_disk_full(OSError(errno.EIO, ""))
    assert (file.read_bytes(), _names(tmp_path)) == (b"former", ["file"])


def test_several_files_are_replaced_only_when_the_disk_has_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full at the second leaves both as they were; otherwise both are new."""
    files = {tmp_path / "a": b"1", tmp_path / "b": b"1"}
    write_all_atomically(files)
    with monkeypatch.context() as patches:
        _refuse(patches, 2)
        with pytest.raises(OSError, match="No space left"):
            write_all_atomically(dict.fromkeys(files, b"2"))
    assert [file.read_bytes() for file in files] == [b"1", b"1"]
    flushed = _flushed(monkeypatch)
    write_all_atomically(dict.fromkeys(files, b"2"))
    assert [file.read_bytes() for file in files] == [b"2", b"2"]
    assert flushed == ["a.tmp", "b.tmp", tmp_path.name]
    assert _names(tmp_path) == ["a", "b"]


def test_new_folder_is_on_the_disk_with_those_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is made when the disk has the one above; of what is there, only the last may have been left by a kill."""
    flushed = _flushed(monkeypatch)
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert flushed == [tmp_path.parent.name, tmp_path.name, "a"]
    flushed.clear()
    make_folder(tmp_path / "a" / "b")
    assert flushed == ["a"]


def test_folder_below_one_that_cannot_be_flushed_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that autofs mounts, or any folder of a file system that flushes files alone; files are replaced there."""
    fsync = os.fsync

    def of_files_alone(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files_alone)
    make_folder(tmp_path / "a" / "b")
    write_atomically(tmp_path / "a" / "b" / "file", b"1")
    LogFolder(tmp_path / "log").sync()
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"1"


def test_folder_with_the_name_of_a_file_is_refused(tmp_path: Path) -> None:
    """The file stays."""
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "file" / "folder")


def test_file_that_the_system_cannot_look_up_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a name that is not there is missing."""
    (tmp_path / "file").touch()
    assert is_there(tmp_path)
    assert is_there(tmp_path / "file")
    assert not is_there(tmp_path / "other")
    assert not is_there(tmp_path / "file" / "below")

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        is_there(tmp_path)
