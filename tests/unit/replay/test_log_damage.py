"""What a restart makes of a log that was torn, flipped or shortened: never a wrong step, never a crash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from services.replay.append import Appending
from tests.unit.replay.log_for_tests import Log, open_log, sample_all
from tests.unit.replay.streams_for_tests import (
    append,
    make_chunk,
    make_config,
    make_items,
    open_streams,
    steps_of,
)
from tidemill.errors import AlreadyExists, FatalError
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind

RANKED = SelectorConfig(SelectorKind.PRIORITIZED, 1.0)


def write(log: Log, appending: Appending, first: int, stream: int = 0) -> None:
    """Append one chunk of four steps and an item of two steps at each but the very first."""
    items = [(0, i, 2) for i in range(4) if first + i]
    append(log.replay, appending, [make_chunk(stream, 0, first, 4)], [make_items(0, items)])


def filled(folder: Path, chunks: int = 4) -> Log:
    """Return a log with a table and some chunks of one stream."""
    log = open_log(folder)
    log.replay.create_table(make_config())
    appending = open_streams(log.replay)
    for first in range(0, 4 * chunks, 4):
        write(log, appending, first)
    return log


def contents(log: Log) -> list[tuple[int, ...]]:
    """Return (stream, steps) of every item."""
    table = log.replay.find("t")
    return sorted(steps_of(sample_all(log, table))) if table.size else []


def expected(steps: int) -> list[tuple[int, ...]]:
    """Return what `contents` is after so many steps."""
    return [(0, step - 1, step) for step in range(1, steps)]


def test_tail_torn_at_any_byte_of_the_last_record_costs_that_record_alone(tmp_path: Path) -> None:
    """Everything before is there, the stream asks for the lost steps, and they can be stored again."""
    log = filled(tmp_path)
    file, size_before = log.files[-1], 0
    whole = file.read_bytes()
    log.crash()
    shorter = filled(tmp_path / "shorter", chunks=3)
    size_before = shorter.files[-1].stat().st_size
    shorter.crash()
    for cut in range(size_before, len(whole)):
        for path in tmp_path.glob("*.log"):
            path.unlink()
        file.write_bytes(whole[:cut])
        torn = open_log(tmp_path)
        assert contents(torn) == expected(12)
        assert torn.recovered.damage.records == 0
        assert torn.recovered.damage.torn_bytes == cut - size_before
        appending = open_streams(torn.replay, epoch=1)
        assert appending.epoch.next_steps() == [12]
        write(torn, appending, 12)
        assert contents(torn) == expected(16)
        torn.crash()


def test_flipped_bit_anywhere_is_found_and_never_served(tmp_path: Path) -> None:
    """Whatever byte of the log is damaged, what is served was written, and the damage is counted."""
    log = filled(tmp_path)
    file = log.files[-1]
    whole = file.read_bytes()
    log.crash()
    for position in range(0, len(whole), 3):
        for path in tmp_path.glob("*.log"):
            path.unlink()
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        damaged = open_log(tmp_path)
        assert damaged.recovered.damage.records >= 1, position
        if damaged.replay.tables:
            assert set(contents(damaged)) <= set(expected(16)), position
        damaged.crash()


def test_damaged_chunk_costs_only_the_items_that_need_it(tmp_path: Path) -> None:
    """The items of its steps and those that reach into them are dropped and counted; the stream goes on."""
    log = filled(tmp_path)
    store = log.replay.find("t").store
    second = store.next_slot(int(store.held()[0]))
    where = store.blocks.locations(store.held()[second : second + 1])  # type: ignore[attr-defined]
    log.crash()
    file = log.files[-1]
    data = bytearray(file.read_bytes())
    data[int(where.offsets[0]) + 10] ^= 1
    file.write_bytes(data)
    restarted = open_log(tmp_path)
    assert contents(restarted) == [(0, a, b) for _, a, b in expected(16) if not {a, b} & {4, 5, 6, 7}]
    assert restarted.recovered.dropped == restarted.replay.find("t").counters.corrupt_items == 5
    assert restarted.recovered.damage.records == 1
    assert open_streams(restarted.replay, epoch=1).epoch.next_steps() == [16]
    restarted.crash()
    again = open_log(tmp_path)
    assert len(contents(again)) == 10
    again.crash()


def test_damaged_newest_chunk_lets_its_stream_go_on(tmp_path: Path) -> None:
    """Items that would reach into the lost steps are refused; those behind it are stored."""
    log = filled(tmp_path)
    write(log, open_streams(log.replay, "b"), 0)  # so that the damage is not at the log's end
    chunk = log.replay.streams.epochs[0].streams[0].last
    log.replay.drop_chunk(log.replay.find("t").store, chunk)
    appending = open_streams(log.replay, "a", epoch=1)
    assert appending.epoch.next_steps() == [16]
    append(log.replay, appending, [make_chunk(0, 0, 16, 4)], [make_items(0, [(0, i, i + 1) for i in range(4)])])
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
    assert log.replay.find("t").limiter.lead == 0
    assert contents(log) == kept
    with pytest.raises(AlreadyExists):
        log.replay.create_table(config)
    appending = open_streams(log.replay, epoch=1)
    write(log, appending, 16)
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
    with pytest.raises(FatalError, match="another replay service"):
        open_log(tmp_path)
    log.crash()


def test_log_of_another_format_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server says what it reads and what it found, and touches nothing."""
    monkeypatch.setattr("services.replay.log_state.FORMAT", 2)
    log = filled(tmp_path)
    file = log.files[-1]
    log.crash()
    file.write_bytes(file.read_bytes() + b"TMLR and then something new")
    whole = file.read_bytes()
    monkeypatch.undo()
    with pytest.raises(FatalError, match="has format 2, this version of Tidemill reads format 1"):
        open_log(tmp_path)
    assert file.read_bytes() == whole


def test_empty_or_foreign_files_are_no_log(tmp_path: Path) -> None:
    """An empty segment is removed, one without a single record is set aside, files of other names are left alone."""
    (tmp_path / "00000001.log").touch()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "00000002.log").write_bytes(b"no record of ours" * 10)
    log = open_log(tmp_path)
    assert log.replay.tables == ()
    assert (tmp_path / "00000002.log.unreadable").read_bytes() == b"no record of ours" * 10
    assert log.recovered.damage.records == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"
    log.crash()


def test_table_whose_record_is_damaged_lends_nobody_its_number(tmp_path: Path) -> None:
    """A new table must not find the chunks and items of one that the log no longer names."""
    log = filled(tmp_path)
    log.crash()
    file = log.files[-1]
    data = bytearray(file.read_bytes())
    at = data.index(b'"max_items"')
    data[at] ^= 1
    file.write_bytes(data)
    for _ in range(2):
        log = open_log(tmp_path)
        log.replay.create_table(make_config())
        assert contents(log) == []
        log.crash()
