"""`tidemill replay inspect`: says what is in a log and what is corrupt, and changes nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_streams import append, make_chunk, make_config, make_items, open_streams
from tests.unit.replay.logs import Log, open_log, unreadable
from tidemill.errors import FatalError
from tidemill.replay.table_config import TableUpdate
from tidemill.services.replay.log import inspect as inspect_log
from tidemill.services.replay.log.inspect import histogram
from tidemill.services.replay.log.logged_blocks import LoggedBlocks


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log of 30 chunks and 120 items in several segments."""
    log = open_log(tmp_path / "log", segment_bytes=3000)
    log.replay.create_table(make_config(max_items=1000))
    session = open_streams(log.replay)
    for first in range(0, 120, 4):
        append(log.replay, session, [make_chunk(0, 0, first, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])
    return log


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def inspect(log: Log, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Return the exit code and the lines of an inspection, which changes no file."""
    folder = log.recovered.folder.path
    before = files_of(folder)
    code = inspect_log.main([str(folder)])
    assert files_of(folder) == before
    return code, capsys.readouterr().out.splitlines()


def numbers(lines: list[str], first: str) -> list[str]:
    """Return the other words of the line that begins with a word."""
    return next(line.split()[1:] for line in lines if line.split()[:1] == [first])


def test_whole_log_is_described_and_exits_0(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables with items, segments with records, chunks and items in use; a torn end is reported, not as corruption."""
    log.snapshot()
    log.crash()
    with log.files[-1].open("ab") as file:
        file.write(b"torn")
    code, lines = inspect(log, capsys)
    assert code == 0
    assert lines[-1] == "whole"
    assert numbers(lines, "t") == ["120", "0"]
    segments = [line.split() for line in lines if line[:8].strip().isdigit()]
    assert [int(segment[0]) for segment in segments] == list(range(1, len(log.files) + 1))
    assert sum(int(segment[2]) for segment in segments) == log.journal.sequence
    assert [sum(int(segment[column]) for segment in segments) for column in (3, 4)] == [30, 120]
    assert any("last 4 bytes" in line for line in lines)


def test_tables_items_are_described_by_priority_age_samples_and_writer(
    log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their distributions, how many each writer has of all and of the newest, and one item decoded."""
    session = open_streams(log.replay, "other")
    append(
        log.replay, session, [make_chunk(7, 0, 0, 4)], [make_items(0, [(0, i, 1) for i in range(4)], [0, 5, 50, 500])]
    )
    table = log.replay.find("t")
    table.draw(124, without_replacement=True).release(table.store)
    log.replay.update_table(table, TableUpdate(rate_limiter_on=False))
    log.snapshot()
    log.crash()
    code, lines = inspect(log, capsys)
    assert code == 0
    said = [" ".join(line.split()) for line in lines]
    assert "table t: 124 of at most 1,000 items" in said[0]
    assert "rate limiter: OFF, min_size 1" in said
    assert "priorities: 0 to 500, median 1" in said
    assert [line.rstrip(" #") for line in said if "to below" in line][:3] == [
        "1 to below 10 121",
        "10 to below 100 1",
        "100 to below 1,000 1",
    ]
    assert "ages, in items inserted since: 0 to 123, median 61.5" in said
    assert "times sampled, as of the newest snapshot: 1 to 1, median 1" in said
    assert "a 120 96.8% 96.8% 120" in said
    assert "other 4 3.2% 3.2% 4" in said
    assert any(line.startswith("frame int64 [1, 3], 3 to 21: [ 3, 21, 7]") for line in said)


def test_histogram_has_a_dozen_rows_at_most_whatever_the_range() -> None:
    """Powers are put together where there are many; zeros have a row; the counts add up."""
    values = np.array([0, 0, 1e-300, 1e-9, 1, 2, 3, 1e39])
    rows = list(histogram("priorities", values, 10))[1:]
    assert len(rows) <= 13
    assert sum(int(row[33:45].replace(",", "")) for row in rows) == len(values)
    assert rows[0].split()[:2] == ["0", "2"]


def test_histogram_has_a_row_for_what_is_below_0() -> None:
    """Priorities of a heap may be."""
    rows = [row.rstrip(" #").split() for row in histogram("priorities", np.array([-5.0, -1.0, 0.0, 3.0]), 10)]
    assert rows[1:] == [["below", "0", "2"], ["0", "1"], ["1", "to", "below", "10", "1"]]


def test_corrupt_log_is_described_and_exits_1(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing segment, a flipped bit in a record and one in a chunk are each named, and the lost items counted."""
    table = log.replay.find("t")
    blocks = table.store.blocks
    assert isinstance(blocks, LoggedBlocks)
    oldest = blocks.locations(table.store.held()[:1])
    log.crash()
    data = bytearray(log.files[0].read_bytes())
    data[int(oldest.offsets[0]) + 8] ^= 1
    data[data.index(b'"max_items"')] ^= 1
    log.files[0].write_bytes(data)
    missing = log.files[2]
    missing.unlink()
    code, lines = inspect(log, capsys)
    assert code == 1
    assert any(line.startswith("00000001.log: ") and line.endswith("are corrupt") for line in lines)
    assert "segment 3 is missing" in lines
    restored, lost = map(int, numbers(lines, "t"))
    assert restored + lost == 120
    assert lines[-1].startswith("CORRUPT: 1 records corrupt, ")
    assert lines[-1].endswith(f"1 segments missing, 1 chunks corrupt, {lost} items lost")
    again = open_log(log.recovered.folder.path)
    assert (again.replay.find("t").size, again.recovered.dropped) == (restored, lost)
    again.crash()


@pytest.mark.parametrize("given", [".", "replay"])
def test_run_is_the_logs_of_its_shards(given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of their numbers; a single one needs no heading."""
    for shard in (0, 10, 9):
        log = open_log(tmp_path / "replay" / str(shard))
        log.replay.create_table(make_config(max_items=10 + shard))
        log.crash()
        assert inspect_log.main([str(tmp_path / given)]) == 0
        lines = capsys.readouterr().out.splitlines()
        headings = [line.rpartition("/")[2] for line in lines if line.startswith("== ")]
    assert headings == ["0", "9", "10"]
    assert lines[-1] == "whole"
    assert inspect_log.main([str(tmp_path / "replay" / "9")]) == 0
    assert "== " not in capsys.readouterr().out


def test_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    """Anything but a folder with a log is answered with what to give."""
    with pytest.raises(FatalError, match=naming(tmp_path / "nothing", "runs/NAME/replay/0")):
        inspect_log.main([str(tmp_path / "nothing")])
    with pytest.raises(FatalError, match=naming(tmp_path, "NNNNNNNN.log")):
        inspect_log.main([str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_lock", [True, False])
def test_log_on_a_read_only_disk_is_inspected(
    log: Log, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_lock: bool
) -> None:
    """Nothing is opened to be written, and a copy of a log need not have a lock."""
    log.crash()
    if not has_lock:
        (log.recovered.folder.path / ".lock").unlink()
    open_any = os.open

    def refuse(path: str | Path, flags: int, *arguments: int) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return open_any(path, flags, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    code, lines = inspect(log, capsys)
    assert (code, lines[-1]) == (0, "whole")


def test_log_in_use_is_refused(log: Log) -> None:
    """A log that a server writes is not read meanwhile."""
    with pytest.raises(FatalError, match=naming(log.recovered.folder.path)):
        inspect_log.main([str(log.recovered.folder.path)])
    log.crash()


@pytest.mark.parametrize("corrupt", [False, True])
def test_command_inspects_the_log(log: Log, corrupt: bool) -> None:
    """`tidemill replay inspect FOLDER` prints what is there; corruption is the exit code."""
    log.crash()
    if corrupt:
        log.files[1].unlink()
    command = [sys.executable, "-m", "tidemill.services.launcher", "replay", "inspect", str(log.recovered.folder.path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == corrupt
    assert ("CORRUPT" if corrupt else "whole") in done.stdout.splitlines()[-1]
    assert done.stderr == ""


def test_help_says_what_it_does_and_how_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit codes are documented."""
    with pytest.raises(SystemExit) as ended:
        inspect_log.main(["--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "usage: tidemill replay inspect" in shown
    assert "exit code is 0 for an intact log and 1 for a corrupt one" in shown


def test_log_that_cannot_be_read_is_not_called_corrupt(log: Log) -> None:
    """The system's error is the message."""
    log.crash()
    with unreadable(errno.EIO), pytest.raises(FatalError, match=naming("Input/output error")):
        inspect_log.main([str(log.recovered.folder.path)])
