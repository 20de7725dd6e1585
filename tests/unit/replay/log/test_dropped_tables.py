"""A dropped table stays dropped, whatever the log still holds of it, and another of its signature keeps its chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_streams import append, make_chunk, make_config, make_items, open_streams, steps_of
from tests.unit.replay.logs import Log, open_log, sample_all
from tidemill.errors import NotFound
from tidemill.services.replay.state.append import AppendSession

SMALL = 2000


def opened(path: Path) -> Log:
    """Return the log in a folder, with small segments; nothing of it may be corrupt or lost."""
    log = open_log(path, segment_bytes=SMALL)
    assert not log.recovered.corruption.is_any
    assert not log.recovered.dropped
    return log


def reopened(log: Log) -> Log:
    """Return the log after a crash."""
    log.crash()
    return opened(log.recovered.folder.path)


def write(log: Log, session: AppendSession, first: int = 0, count: int = 8) -> None:
    """Append chunks of four steps to one stream, with an item of one step at each in every table."""
    for start in range(first, first + count, 4):
        batches = [make_items(i, [(0, k, 1) for k in range(4)]) for i in range(len(session.tables))]
        append(log.replay, session, [make_chunk(0, 0, start, 4)], batches)


def names(log: Log) -> list[str]:
    """Return the names of all tables."""
    return [table.config.name for table in log.replay.tables]


@pytest.mark.parametrize("compacted", [False, True], ids=["whole log", "compacted"])
@pytest.mark.parametrize("snapshot", ["before", "after", "none"])
def test_the_only_table_stays_dropped_and_its_chunks_are_freed(tmp_path: Path, snapshot: str, compacted: bool) -> None:
    """After a crash there is neither table, chunk nor stream; one of its name begins empty and has other keys."""
    log = opened(tmp_path)
    log.replay.create_table(make_config())
    table = log.replay.find("t")
    write(log, open_streams(log.replay, "a"))
    keys = table.items.keys(table.items.live())
    if snapshot == "before":
        log.snapshot()
    assert log.replay.drop_table(table) == 8
    assert (log.replay.chunks, log.replay.streams.count, log.replay.stores) == (0, 0, ())
    if snapshot == "after":
        log.snapshot()
    if compacted:
        log = reopened(log)
        log.compact()
    log = reopened(log)
    assert (names(log), log.replay.chunks, log.replay.streams.count) == ([], 0, 0)
    log.replay.create_table(make_config())
    table = log.replay.find("t")
    assert table.size == 0
    write(log, open_streams(log.replay, "a"))
    assert table.update_priorities(keys, np.ones(8)) == 0
    log = reopened(log)
    assert sorted(steps_of(sample_all(log, log.replay.find("t")))) == [(0, step) for step in range(8)]


@pytest.mark.parametrize("dropped", ["a", "b"])
def test_the_other_table_of_a_signature_keeps_its_items_and_streams(tmp_path: Path, dropped: str) -> None:
    """Whichever of two tables goes, the other keeps its chunks over crashes, and its writer continues."""
    log = opened(tmp_path)
    kept = {"a": "b", "b": "a"}[dropped]
    for name in ("a", "b"):
        log.replay.create_table(make_config(name))
    write(log, open_streams(log.replay, "actor", tables=(dropped, kept)))
    log.replay.drop_table(log.replay.find(dropped))
    for _ in range(2):
        log = reopened(log)
        log.compact()
        assert names(log) == [kept]
        assert sorted(steps_of(sample_all(log, log.replay.find(kept)))) == [(0, step) for step in range(8)]
    (epoch,) = log.replay.streams.epochs
    assert epoch.next_steps()[0] == 8
    write(log, log.replay.open_streams("actor", epoch.number, 1, [kept], epoch.store.signature, 4), 8)
    log = reopened(log)
    assert log.replay.find(kept).size == 16
    log.replay.drop_table(log.replay.find(kept))
    log.replay.create_table(make_config("c"))
    write(log, open_streams(log.replay, "actor", tables=("c",)))
    log = reopened(log)
    assert names(log) == ["c"]
    assert log.replay.find("c").size == 8


def test_a_writer_of_a_dropped_table_is_told(tmp_path: Path) -> None:
    """What is appended to a session that names it is refused by name, and nothing of it is stored."""
    log = opened(tmp_path)
    for name in ("a", "b"):
        log.replay.create_table(make_config(name))
    session = open_streams(log.replay, "actor", tables=("a", "b"))
    write(log, session)
    log.replay.drop_table(log.replay.find("a"))
    with pytest.raises(NotFound, match=naming("table 'a'")):
        write(log, session, 8)
    assert log.replay.find("b").size == 8


@pytest.mark.parametrize("dropped", ["a", "c", "d"])
def test_tables_after_the_65535th_are_kept_as_those_before(tmp_path: Path, dropped: str) -> None:
    """A service that makes and drops tables for weeks: each has its own items after a crash."""
    log = opened(tmp_path)
    log.replay.create_table(make_config("a"))
    write(log, open_streams(log.replay, "a", tables=("a",)))
    log.replay.next_table = 2**16 - 1
    for name in "bcd":
        log.replay.create_table(make_config(name))
        write(log, open_streams(log.replay, name, tables=(name,)), count=4)
    numbers = [table.number for table in log.replay.tables]
    assert numbers == [1, 2**16 - 1, 2**16, 2**16 + 2]  # with the one between, a record could mean the first
    log = reopened(log)
    for count in (12, 16):
        log.replay.drop_table(log.replay.find(dropped))
        log.replay.create_table(make_config(dropped))
        write(log, open_streams(log.replay, "e", tables=(dropped,)), count=count)
        log = reopened(log)
        log.compact()
        for name, steps in ({"a": 8, "b": 4, "c": 4, "d": 4} | {dropped: count}).items():
            assert sorted(steps_of(sample_all(log, log.replay.find(name)))) == [(0, step) for step in range(steps)]
    assert log.replay.find(dropped).number > max(numbers)
