"""Tables to folders of files: of one moment, in part or whole, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.clock import Clock
from tests.support.exported import fill, steps_of
from tests.support.naming import because, naming
from tests.support.replay_service import LocalServer, local_server, open_appender, write
from tests.support.replay_streams import make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import (
    FailedPrecondition,
    FatalError,
    InvalidArgument,
    NotFound,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from tidemill.replay import Server, copy_tables, export_table
from tidemill.replay.client import ReplayClient
from tidemill.replay.transfer.stream import Start, open_export
from tidemill.services.replay.__main__ import main
from tidemill.services.replay.export import TableExport
from tidemill.services.replay.state.memory import MAX_HOLDERS
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.insertion_times import InsertionTimes


@pytest.mark.parametrize(
    "wanted,expected",
    [
        ({}, range(40)),
        ({"newest": 3}, range(37, 40)),
        ({"newest": 100}, range(40)),
        ({"min_age": 10}, range(30)),
        ({"max_age": 4}, range(35, 40)),
        ({"min_age": 10, "max_age": 12, "newest": 2}, range(28, 30)),
        ({"min_age": 40}, range(0)),
    ],
)
def test_range_of_items_is_exported(
    server: LocalServer, tmp_path: Path, wanted: dict[str, Any], expected: range
) -> None:
    """The newest, or those of some ages, oldest first; and only the steps that these need."""
    fill(server.address)
    report = export_table(server.address, "t", tmp_path / "out", **wanted)
    assert steps_of(tmp_path / "out") == list(expected)
    assert report.items == len(expected)
    assert report.steps <= len(expected) + 6  # chunks of four, whole


@pytest.fixture
def clock() -> Clock:
    """The time of day of a server."""
    return Clock(1000.0)


@pytest.fixture
def dated(clock: Clock) -> Iterator[LocalServer]:
    """A server to whose table 40 items came, four at 1000 s, 1010 s and so on until 1090 s."""
    with local_server(time_of_day=clock) as running:
        with ReplayClient(running.address) as client, open_appender(running.address) as appender:
            client.create_table(make_config())
            for first in range(0, 40, 4):
                clock.now_s = 1000.0 + 2.5 * first
                write(appender, range(first, first + 4))
                assert appender.flush(WAIT_S)
        yield running


@pytest.mark.parametrize(
    "wanted,expected",
    [
        ({"since_s": 1000.0}, range(40)),
        ({"since_s": 1055.0}, range(24, 40)),
        ({"since_s": 1060}, range(24, 40)),
        ({"until_s": 1060.0}, range(24)),
        ({"since_s": 1010.0, "until_s": 1030.0}, range(4, 12)),
        ({"since_s": 1010.0, "until_s": 1030.0, "newest": 3, "min_age": 30}, range(7, 10)),
        ({"since_s": 1010.0, "max_age": 9}, range(30, 40)),
        ({"until_s": 1000.0}, range(0)),
        ({"since_s": 1091.0}, range(0)),
    ],
)
def test_range_of_time_is_exported(dated: LocalServer, tmp_path: Path, wanted: dict[str, Any], expected: range) -> None:
    """Since a time, and until before one, besides every other condition."""
    assert export_table(dated.address, "t", tmp_path / "out", **wanted).items == len(expected)
    assert steps_of(tmp_path / "out") == list(expected)


def test_range_of_time_is_deleted(dated: LocalServer, tmp_path: Path) -> None:
    """What came since a time and before another goes, of one writer or of all."""
    with ReplayClient(dated.address) as client:
        assert client.delete_matching_items("t", since_s=1010.0, until_s=1020.0) == 4
        assert client.delete_matching_items("t", actor_id="actor", until_s=1005.0) == 4
        assert client.delete_matching_items("t", since_s=1080.0, min_age=5) == 3
    export_table(dated.address, "t", tmp_path / "out")
    assert steps_of(tmp_path / "out") == [*range(8, 32), *range(35, 40)]


def test_bad_ranges_of_time_are_refused_by_name(
    dated: LocalServer, server: LocalServer, client: ReplayClient, tmp_path: Path
) -> None:
    """And so is any for a table of which no item's time is known, as every table of an earlier release's server."""
    with pytest.raises(InvalidArgument, match=naming("until_s 1010.0 since_s 1020.0")):
        export_table(dated.address, "t", tmp_path / "out", since_s=1020.0, until_s=1010.0)
    with ReplayClient(dated.address) as other, pytest.raises(InvalidArgument, match=naming("since_s -1.0")):
        other.delete_matching_items("t", since_s=-1.0)
    client.create_table(make_config())
    server.replay.find("t").times = InsertionTimes()
    with pytest.raises(FailedPrecondition, match=naming("table 't'")):
        export_table(server.address, "t", tmp_path / "out", since_s=0.0)
    with pytest.raises(FailedPrecondition, match=naming("table 't'")):
        client.delete_matching_items("t", until_s=0.0)
    assert list(tmp_path.iterdir()) == []


def test_commands_take_times(dated: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`export` and `delete` with --since and --until: by the clock, or so long ago."""
    since = datetime.fromtimestamp(1060).isoformat()
    assert main(["export", dated.address, "t", "--out", str(tmp_path / "out"), "--since", since]) == 0
    assert "exported 16 items of t" in capsys.readouterr().out
    assert main(["delete", dated.address, "t", "--since", since, "--until", "1d"]) == 0
    assert capsys.readouterr().out == "deleted 16 items of t\n"
    with pytest.raises(SystemExit):
        main(["export", dated.address, "t", "--out", str(tmp_path / "again"), "--since", "yesterday"])
    assert "'yesterday' is not a time: write 2026-11-23" in capsys.readouterr().err


def test_copy_takes_times(dated: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`copy` with --since and --until; a table without known times is refused before anything is copied."""
    since, until = (datetime.fromtimestamp(time_s).isoformat() for time_s in (1010, 1030))
    with local_server() as target:
        assert main(["copy", dated.address, target.address, "--since", since, "--until", until]) == 0
        said = capsys.readouterr().out
        assert "copied 8 items of t" in said
        assert "the table has 8 items now" in said
        export_table(target.address, "t", tmp_path / "copied")
    assert steps_of(tmp_path / "copied") == list(range(4, 12))
    with ReplayClient(dated.address) as client:
        client.create_table(replace(make_config(), name="undated"))
    dated.replay.find("undated").times = InsertionTimes()
    with local_server() as target, ReplayClient(target.address) as client:
        with pytest.raises(FailedPrecondition, match=naming("table 'undated'")):
            copy_tables(dated.address, target.address, since_s=1010.0)
        with pytest.raises(InvalidArgument, match=naming("until_s 1010.0 since_s 1020.0")):
            copy_tables(dated.address, target.address, ["t"], since_s=1020.0, until_s=1010.0)
        assert client.list_tables() == ()


def test_export_is_no_folder_for_the_log_of_a_server(server: LocalServer, tmp_path: Path) -> None:
    """Which would begin empty and write among its files; it says how to get the table."""
    fill(server.address)
    export_table(server.address, "t", out := tmp_path / "out")
    before = set(out.iterdir())
    with pytest.raises(FatalError, match=naming(out, "storage.folder", f"tidemill replay import ADDRESS {out}")):
        Server(out)
    assert set(out.iterdir()) == before


def test_log_shares_a_folder_with_the_manifest_of_something_else(tmp_path: Path) -> None:
    """Such as a web page's: only an exported table is refused."""
    (tmp_path / "manifest.json").write_text('{"format": "web"}')
    with Server(tmp_path) as server, ReplayClient(server.address) as client:
        assert client.list_tables() == ()


def test_files_are_read_without_tidemill(server: LocalServer, tmp_path: Path) -> None:
    """An item is rows `first_row` .. of the columns, which are plain arrays."""
    from safetensors.numpy import load_file

    fill(server.address)
    export_table(server.address, "t", tmp_path / "out")
    steps, items = (load_file(tmp_path / "out" / f"{kind}-000000.safetensors") for kind in ("steps", "items"))
    row = int(items["first_row"][7])
    assert int(items["length"][7]) == 1
    assert steps["frame"][row].tolist() == [7, 49, 0]


def test_files_can_be_read_by_whom_the_umask_lets(server: LocalServer, tmp_path: Path) -> None:
    """Safetensors makes files that only their owner can read."""
    fill(server.address)
    (tmp_path / "usual").touch()
    export_table(server.address, "t", tmp_path / "out")
    assert {file.stat().st_mode for file in (tmp_path / "out").iterdir()} == {(tmp_path / "usual").stat().st_mode}


def test_export_is_of_one_moment_while_a_writer_goes_on(
    server: LocalServer, client: ReplayClient, tmp_path: Path
) -> None:
    """What was there when it began is exported, though all of it was evicted before it was read."""
    fill(server.address, replace(make_config(), max_items=40))
    with open_export(server.address, "t") as parts:
        start = next(parts)
        assert isinstance(start, Start)
        assert start.items == 40
        with open_appender(server.address, "another") as appender:
            write(appender, range(60))
            assert appender.flush(WAIT_S)
        rest = list(parts)
    columns = [part.columns["step"] for part in rest if hasattr(part, "columns")]
    assert np.concatenate(columns).tolist() == list(range(40))
    wait_until(lambda: not server.replay.memory.held, "the export to end")
    assert server.replay.chunks <= 10 + 2 * 2  # those of the newer items, and the newest of both streams


def test_exports_under_way_have_a_bound() -> None:
    """Callers that read no further hold chunks for so many, and no more; one that ends makes room."""
    with local_server() as server, ExitStack() as others:
        fill(server.address)
        for _ in range(MAX_HOLDERS):
            others.enter_context(server.replay.memory.holding(lambda: TableExport(server.replay.find("t"))))
        with (
            pytest.raises(ResourceExhausted, match=naming("4"), check=because(Reason.TOO_MANY_EXPORTS)),
            open_export(server.address, "t") as refused,
        ):
            next(refused)
        others.close()
        assert not server.replay.memory.held
        with open_export(server.address, "t") as parts:
            assert isinstance(next(parts), Start)


def test_export_gives_way_where_memory_is_needed(tmp_path: Path) -> None:
    """What it holds is let go of before a table gives up more than it must; the caller gets an error."""
    with local_server(stored_limit=40_000) as server:
        fill(server.address, replace(make_config(), max_items=10_000), steps=100)
        with server.replay.memory.holding(lambda: TableExport(server.replay.find("t"))) as held:  # for a slow caller
            with open_appender(server.address, "another") as appender:
                write(appender, range(800))
                assert appender.flush(WAIT_S)
            table = server.replay.find("t")
            assert table.counters.evictions > 0
            assert table.size > 100
            assert not held.holds
    with pytest.raises(ResourceExhausted, match=naming("export items")):
        asyncio.run(_next_part(held, server.replay))


async def _next_part(export: TableExport, replay: ReplayState) -> bytes:
    await export.choose()
    return await anext(export.chunk_parts(replay, None))


def test_undecodable_chunk_costs_its_items(server: LocalServer, client: ReplayClient, tmp_path: Path) -> None:
    """A server opens no columns: what a broken writer sent is found by the client that exports."""
    client.create_table(make_config())
    with open_appender(server.address) as appender:
        for first in (0, 4, 8):
            chunk = make_chunk(0, 0, first, 4)
            if first == 4:
                chunk = replace(chunk, blocks=(b"\xff" * 20, *chunk.blocks[1:]))
            items = make_items(0, [(0, 0, 1), (0, 3, 2)])
            assert appender.append([chunk], [items], WAIT_S)
        assert appender.flush(WAIT_S)
    report = export_table(server.address, "t", tmp_path / "out")
    assert (report.items, report.lost_items) == (4, 2)
    assert steps_of(tmp_path / "out") == [0, 2, 8, 10]


def test_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """A server that goes away in the middle, and a folder that exists, leave nothing behind."""
    with local_server() as server:
        fill(server.address)
        (tmp_path / "taken").mkdir()
        with pytest.raises(InvalidArgument, match=naming(tmp_path / "taken")):
            export_table(server.address, "t", tmp_path / "taken")
        with pytest.raises(NotFound, match=naming("table 'nowhere'")):
            export_table(server.address, "nowhere", tmp_path / "out")
        with pytest.raises(InvalidArgument, match=naming("newest 0 1")):
            export_table(server.address, "t", tmp_path / "out", newest=0)
        with pytest.raises(InvalidArgument, match=naming("max_age 3 min_age 4")):
            export_table(server.address, "t", tmp_path / "out", min_age=4, max_age=3)
    with pytest.raises(Unavailable):
        export_table(server.address, "t", tmp_path / "out", timeout_s=2.0)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
