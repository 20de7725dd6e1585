"""What a restart makes of a log that was torn, flipped or shortened: never a wrong step, never a crash."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.damage import flip
from tests.support.naming import naming
from tests.support.replay_streams import (
    SIGNATURE,
    append,
    make_chunk,
    make_config,
    make_items,
    open_streams,
    steps_of,
)
from tests.unit.replay.logs import BlobBudget, Log, empty_replay, open_log, sample_all
from tidemill.config.services import StorageSettings
from tidemill.errors import AlreadyExists, FatalError
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind
from tidemill.services.replay.log.frame import HEADER_BYTES, Kind, scan
from tidemill.services.replay.log.log import ReplayLog
from tidemill.services.replay.log.open import open_replay_log
from tidemill.services.replay.log.segments import NEWEST, NewestSegment
from tidemill.services.replay.state.append import AppendSession
from tidemill.types import Codec

SEGMENT = "00000001.log"
COPIES = "00000001.copies"
RANKED = SelectorConfig(SelectorKind.PRIORITIZED, 1.0)


def write(log: Log, session: AppendSession, first: int, stream: int = 0) -> None:
    """Append one chunk of four steps and an item of two steps at each but the very first."""
    items = [(0, i, 2) for i in range(4) if first + i]
    append(log.replay, session, [make_chunk(stream, 0, first, 4)], [make_items(0, items)])


def filled(folder: Path, chunks: int = 4) -> Log:
    """Return a log with a table and some chunks of one stream."""
    log = open_log(folder)
    log.replay.create_table(make_config())
    session = open_streams(log.replay)
    for first in range(0, 4 * chunks, 4):
        write(log, session, first)
    return log


def contents(log: Log) -> list[tuple[int, ...]]:
    """Return (stream, steps) of every item."""
    table = log.replay.find("t")
    return sorted(steps_of(sample_all(log, table))) if table.size else []


def expected(steps: int) -> list[tuple[int, ...]]:
    """Return `contents` after so many steps."""
    return [(0, step - 1, step) for step in range(1, steps)]


def put(folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder hold these files and no others."""
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def flipped(data: bytes, position: int, bits: int = 0x10) -> bytes:
    """Return data with bits of one byte turned."""
    return data[:position] + bytes([data[position] ^ bits]) + data[position + 1 :]


def test_tail_torn_at_any_byte_of_the_last_record_costs_that_record_alone(tmp_path: Path) -> None:
    """Everything before is there, the stream asks for the lost steps, and they can be stored again."""
    log = filled(tmp_path, chunks=3)
    before = files_of(tmp_path)
    write(log, open_streams(log.replay, epoch=1), 12)
    whole = files_of(tmp_path)[SEGMENT]
    log.crash()
    for cut in range(len(before[SEGMENT]), len(whole)):  # the copy is written after the record
        put(tmp_path, before | {SEGMENT: whole[:cut]})
        torn = open_log(tmp_path)
        assert contents(torn) == expected(12)
        assert not torn.recovered.corruption.is_any
        assert torn.recovered.corruption.torn_bytes == cut - len(before[SEGMENT])
        session = open_streams(torn.replay, epoch=1)
        assert session.epoch.next_steps() == [12]
        write(torn, session, 12)
        assert contents(torn) == expected(16)
        torn.crash()


@pytest.mark.parametrize("name", [SEGMENT, COPIES, NEWEST])
def test_flipped_bit_anywhere_costs_at_most_the_record_it_is_in(tmp_path: Path, name: str) -> None:
    """Whatever byte is flipped, table and all other items are there, each lost one is counted, and so is the bit."""
    log = filled(tmp_path)
    whole = files_of(tmp_path)
    log.crash()
    step = 3 if name == SEGMENT else 1
    for position in range(0, len(whole[name]), step):
        put(tmp_path, whole | {name: flipped(whole[name], position)})
        corrupt = open_log(tmp_path)
        found = set(contents(corrupt))
        lost = set(expected(16)) - found
        assert corrupt.recovered.corruption.records >= 1, position
        assert found <= set(expected(16)), position
        assert len(lost) <= (5 if name == SEGMENT else 0), position  # an item reaches back into the chunk before
        assert corrupt.recovered.dropped == len(lost), position
        corrupt.crash()


def test_flipped_bit_of_a_log_that_was_closed_costs_one_record(tmp_path: Path) -> None:
    """What was synced after the newest record is not taken for a tail that the power cut off."""
    opened = open_replay_log(tmp_path, BlobBudget(0), empty_replay)

    async def fill() -> None:
        log = ReplayLog(opened, StorageSettings(folder=str(tmp_path)), lambda: None)
        opened.replay.create_table(make_config())
        session = open_streams(opened.replay)
        for first in range(0, 16, 4):
            append(opened.replay, session, [make_chunk(0, 0, first, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])
        await log.close()

    asyncio.run(fill())
    data = (tmp_path / SEGMENT).read_bytes()
    first_changes = next(f for f in scan(memoryview(data), opened.chain.mark).frames if f.kind is Kind.CHANGES)
    (tmp_path / SEGMENT).write_bytes(flipped(data, first_changes.body + 8))
    corrupt = open_log(tmp_path)
    assert contents(corrupt) == [(0, step) for step in range(4, 16)]
    assert corrupt.replay.corrupt_chunks + corrupt.recovered.corruption.records == 1
    corrupt.crash()


def test_flipped_bit_in_the_table_record_costs_no_item(tmp_path: Path) -> None:
    """A table is described twice in a log of one segment, so that all of its items come back."""
    log = filled(tmp_path, chunks=25)
    data = files_of(tmp_path)[SEGMENT]
    log.crash()
    (tmp_path / SEGMENT).write_bytes(flipped(data, data.index(b'"max_items"')))
    corrupt = open_log(tmp_path)
    assert contents(corrupt) == expected(100)
    assert (corrupt.recovered.corruption.records, corrupt.recovered.dropped) == (1, 0)
    corrupt.crash()


@pytest.mark.parametrize("taken", [False, True])
def test_table_that_nothing_describes_costs_its_items_unless_a_snapshot_does(tmp_path: Path, taken: bool) -> None:
    """Both records of a table corrupt: a snapshot describes it too; without one each of its items counts as lost."""
    log = filled(tmp_path)
    if taken:
        log.snapshot()
    whole = files_of(tmp_path)
    log.crash()
    for name in (SEGMENT, COPIES):
        (tmp_path / name).write_bytes(flipped(whole[name], whole[name].index(b'"max_items"')))
    corrupt = open_log(tmp_path)
    assert corrupt.recovered.dropped == (0 if taken else 15)
    corrupt.replay.create_table(make_config())
    assert contents(corrupt) == (expected(16) if taken else [])
    corrupt.crash()


@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
def test_segment_filled_with_a_byte_costs_no_other_file(tmp_path: Path, byte: bytes) -> None:
    """As broken disks leave them: its copies and a snapshot still describe the table, and what is lost is counted."""
    log = filled(tmp_path)
    log.snapshot()
    log.crash()
    (tmp_path / SEGMENT).write_bytes(byte * 4_096)
    corrupt = open_log(tmp_path)
    assert [table.config.name for table in corrupt.replay.tables] == ["t"]
    assert (contents(corrupt), corrupt.recovered.dropped) == ([], 15)
    corrupt.crash()


def test_frame_hidden_in_a_column_is_not_found(tmp_path: Path) -> None:
    """Behind a corrupt header, an actor's bytes are not read as a record, even if it copied them from another log."""
    other = filled(tmp_path / "other", chunks=1)
    data = files_of(tmp_path / "other")[SEGMENT]
    frame = scan(memoryview(data), other.recovered.chain.mark).frames[-1]
    other.crash()
    log = filled(tmp_path)
    session = open_streams(log.replay, "b", chunk_length=64)
    chunk = make_chunk(1, 0, 0, 64)
    hidden = data[frame.start : frame.end]
    column = chunk.blocks[1]
    assert SIGNATURE[1].codec is Codec.RAW
    assert len(hidden) < len(column)
    blocks = (chunk.blocks[0], hidden + column[len(hidden) :], chunk.blocks[2])
    append(log.replay, session, [replace(chunk, blocks=blocks)])
    env_steps = log.replay.env_steps
    write(log, open_streams(log.replay, epoch=1), 16)
    saved = files_of(tmp_path)
    whole = saved[SEGMENT]
    log.crash()
    start = whole.rindex(log.recovered.chain.mark, 0, whole.index(hidden))
    for position in range(start, start + HEADER_BYTES):
        put(tmp_path, saved | {SEGMENT: flipped(whole, position)})
        corrupt = open_log(tmp_path)
        assert contents(corrupt) == expected(20)
        assert corrupt.replay.env_steps == env_steps + 4
        corrupt.crash()


def test_corrupt_chunk_costs_only_the_items_that_need_it(tmp_path: Path) -> None:
    """The items of its steps and those that reach into them are dropped and counted; the stream continues."""
    log = filled(tmp_path)
    store = log.replay.find("t").store
    second = store.next_slot(int(store.held()[0]))
    where = store.blocks.locations(store.held()[second : second + 1])  # type: ignore[attr-defined]
    log.crash()
    flip(log.files[-1], int(where.offsets[0]) + 10)
    restarted = open_log(tmp_path)
    assert contents(restarted) == [(0, a, b) for _, a, b in expected(16) if not {a, b} & {4, 5, 6, 7}]
    assert restarted.recovered.dropped == restarted.replay.find("t").counters.corrupt_items == 5
    assert restarted.recovered.corruption.records == 1
    assert open_streams(restarted.replay, epoch=1).epoch.next_steps() == [16]
    restarted.crash()
    again = open_log(tmp_path)
    assert len(contents(again)) == 10
    again.crash()


def test_two_corrupt_chunks_of_one_item_are_each_freed_once(tmp_path: Path) -> None:
    """The chunks that come after the start get a slot each: every item holds the steps it was written with."""
    log = open_log(tmp_path)
    log.replay.create_table(make_config(max_item_steps=8))
    session = open_streams(log.replay)
    chunks = [make_chunk(0, 0, first, 4) for first in (0, 4, 8)]
    append(log.replay, session, chunks, [make_items(0, [(1, 3, 8), (2, 3, 1)])])
    store = log.replay.find("t").store
    oldest = store.in_order(store.held())[0][:2]
    append(log.replay, session, [make_chunk(0, 0, first, 4) for first in (12, 16, 20)])  # which the stream lets go
    starts = store.blocks.locations(oldest).offsets  # type: ignore[attr-defined]
    log.crash()
    flip(log.files[-1], *(starts + 10).tolist())
    restarted = open_log(tmp_path)
    assert (restarted.recovered.dropped, contents(restarted)) == (1, [(0, 11)])
    session = open_streams(restarted.replay, epoch=1)
    new = [make_chunk(0, 0, first, 4) for first in (24, 28, 32)]
    append(restarted.replay, session, new, [make_items(0, [(i, 0, 1) for i in range(3)])])
    assert contents(restarted) == [(0, 11), (0, 24), (0, 28), (0, 32)]
    restarted.crash()


def test_corrupt_newest_chunk_lets_its_stream_go_on(tmp_path: Path) -> None:
    """Items that would reach into the lost steps are refused; those behind it are stored."""
    log = filled(tmp_path)
    write(log, open_streams(log.replay, "b"), 0)  # so that the corruption is not at the log's end
    chunk = log.replay.streams.epochs[0].streams[0].last
    log.replay.drop_chunks(log.replay.find("t").store, np.array([chunk]))
    session = open_streams(log.replay, "a", epoch=1)
    assert session.epoch.next_steps() == [16]
    append(log.replay, session, [make_chunk(0, 0, 16, 4)], [make_items(0, [(0, i, i + 1) for i in range(4)])])
    log.crash()
    again = open_log(tmp_path)
    assert (0, 16, 17, 18, 19) in contents(again)
    assert all(not {12, 13, 14, 15} & set(steps) for stream, *steps in contents(again) if stream == 0)
    again.crash()


@pytest.mark.parametrize("change", ["grow", "shrink", "limiter", "max_times_sampled"])
def test_restored_table_takes_another_capacity_or_limiter_once(tmp_path: Path, change: str) -> None:
    """The first to ask after a restart decides; the items stay, and so does the new configuration."""
    log = filled(tmp_path)
    log.crash()
    config = make_config()
    wanted = {
        "grow": replace(config, max_items=1000),
        "shrink": replace(config, max_items=5),
        "limiter": replace(
            config, rate_limiter=RateLimiterConfig(min_size=3, samples_per_insert=2.0, error_buffer=9.0)
        ),
        "max_times_sampled": replace(config, max_times_sampled=7),
    }[change]
    kept = expected(16)[-5:] if change == "shrink" else expected(16)
    log = open_log(tmp_path)
    assert log.replay.create_table(wanted) is False
    assert log.replay.find("t").config == wanted
    assert log.replay.find("t").limiter.diff == 0
    assert contents(log) == kept
    with pytest.raises(AlreadyExists):
        log.replay.create_table(config)
    session = open_streams(log.replay, epoch=1)
    write(log, session, 16)
    log.crash()
    again = open_log(tmp_path)
    assert again.replay.find("t").config == wanted
    assert contents(again) == (expected(20)[-5:] if change == "shrink" else expected(20))
    again.crash()


def test_restored_table_keeps_its_sampler(tmp_path: Path) -> None:
    """What its items mean cannot change: another sampler is refused after a restart as before it."""
    filled(tmp_path).crash()
    log = open_log(tmp_path)
    with pytest.raises(AlreadyExists, match="sampler"):
        log.replay.create_table(make_config(sampler=RANKED))
    log.crash()


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    """Two servers never write one log."""
    log = open_log(tmp_path)
    with pytest.raises(FatalError, match=naming(tmp_path)):
        open_log(tmp_path)
    log.crash()


@pytest.mark.parametrize(
    "number, said", [(2, "this Tidemill reads 3 and later: use"), (4, "reads up to 3: use a newer")]
)
def test_log_of_another_format_is_refused_by_name(tmp_path: Path, number: int, said: str) -> None:
    """A server says what it reads, what it found and what to do, and touches nothing."""
    file = tmp_path / SEGMENT
    file.write_bytes(b"TMLR" + struct.pack("<I", number) + bytes(range(1, 200)))
    whole = file.read_bytes()
    with pytest.raises(FatalError, match=naming("00000001.log", number, 3)):
        open_log(tmp_path)
    assert file.read_bytes() == whole


def test_empty_or_foreign_files_are_no_log(tmp_path: Path) -> None:
    """An empty segment is removed, one without a single record is set aside, files of other names are left alone."""
    (tmp_path / "00000001.log").touch()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "00000002.log").write_bytes(b"no record of ours" * 10)
    log = open_log(tmp_path)
    assert log.replay.tables == ()
    assert not (tmp_path / "00000001.log").exists()
    assert (tmp_path / "00000002.log.unreadable").read_bytes() == b"no record of ours" * 10
    assert log.recovered.corruption.records == 1
    assert log.journal.segment == 3
    assert (tmp_path / "notes.txt").read_text() == "mine"
    log.crash()


def test_server_killed_as_it_begins_a_segment_has_lost_nothing(tmp_path: Path) -> None:
    """The file is there and empty: nothing is missing, and its number is used again."""
    log = filled(tmp_path)
    log.recovered.folder.begin(NewestSegment(log.recovered.chain.mark, 2, log.journal.sequence + 1))
    log.crash()
    for name in ("00000002.log", "00000002.copies"):
        (tmp_path / name).touch()
    again = open_log(tmp_path)
    assert contents(again) == expected(16)
    assert not again.recovered.corruption.is_any
    assert again.journal.segment == 2
    again.crash()


def test_table_whose_record_is_corrupt_lends_nobody_its_number(tmp_path: Path) -> None:
    """A new table must not find the chunks and items of one that the log no longer names."""
    log = filled(tmp_path)
    log.crash()
    for name in (SEGMENT, COPIES):
        data = files_of(tmp_path)[name]
        (tmp_path / name).write_bytes(flipped(data, data.index(b'"max_items"')))
    for _ in range(2):
        log = open_log(tmp_path)
        log.replay.create_table(make_config())
        assert contents(log) == []
        log.crash()


def test_record_of_a_changed_capacity_may_be_corrupt(tmp_path: Path) -> None:
    """A table that takes another capacity is written again, twice: either record may be lost."""
    filled(tmp_path).crash()
    log = open_log(tmp_path)
    log.replay.create_table(replace(make_config(), max_items=10))
    log.crash()
    whole = files_of(tmp_path)
    name = log.files[-1].name
    frames = scan(memoryview(whole[name]), log.recovered.chain.mark).frames
    for frame in [frame for frame in frames if frame.kind is Kind.CHANGES]:
        put(tmp_path, whole | {name: flipped(whole[name], frame.start + HEADER_BYTES)})
        again = open_log(tmp_path)
        assert contents(again) == expected(16)[-10:]
        assert again.recovered.dropped == 0
        again.crash()
