"""When items came is known after a crash as before it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.clock import Clock
from tests.support.replay_streams import append, make_chunk, make_config, make_items, open_streams
from tests.unit.replay.logs import Log, open_log
from tidemill.services.replay.tables.insertion_times import LOGGED_EVERY_S, InsertionTimes


def _write(log: Log, clock: Clock, times_s: Sequence[int]) -> None:
    """Append four items at each time."""
    session = open_streams(log.replay, "a", env_count=1)
    for i, now_s in enumerate(times_s):
        clock.now_s = now_s
        items = make_items(0, [(0, step, 1) for step in range(4)])
        append(log.replay, session, [make_chunk(session.epoch.number, 0, i * 4, 4)], [items])


def _border(log: Log, time_s: int) -> int:
    table = log.replay.find("t")
    return table.times.numbers(time_s, None, table.items.inserted)[0]


@pytest.mark.parametrize("snapshot", [False, True])
def test_crash_keeps_the_times_of_the_newest_segment_or_snapshot(tmp_path: Path, snapshot: bool) -> None:
    """What came later counts as come when the last that is known did, until the log continues."""
    clock = Clock(1000.0)
    log = open_log(tmp_path, segment_bytes=2000, clock=clock)
    log.replay.create_table(make_config())
    _write(log, clock, range(1000, 1100))
    if snapshot:
        log.snapshot()
    known = [_border(log, time_s) for time_s in range(1000, 1101)]
    assert known == [4 * i for i in range(101)]
    log.crash()
    again = open_log(tmp_path, segment_bytes=2000, clock=clock)
    segment = 1090 if not snapshot else 1099  # the newest segment began a few messages before the crash
    assert [_border(again, time_s) for time_s in range(1000, segment)] == known[: segment - 1000]
    _write(again, clock, range(2000, 2002))
    assert _border(again, 2000) == 400
    assert _border(again, 2001) == 404


def test_crash_after_a_pause_keeps_times_to_ten_seconds(tmp_path: Path) -> None:
    """Without another segment or a snapshot, long after the table was created: at most 10 s too early, not late."""
    clock = Clock(1000.0)
    log = open_log(tmp_path, clock=clock)
    log.replay.create_table(make_config())
    times_s = [*range(5000, 5100), *range(9000, 9005)]
    _write(log, clock, times_s)
    log.crash()
    again = open_log(tmp_path, clock=clock)
    for i, came_s in enumerate(times_s):
        assert _border(again, came_s + 1) > 4 * i
        assert _border(again, came_s - LOGGED_EVERY_S) <= 4 * i


def test_table_without_items_has_known_times_from_its_creation(tmp_path: Path) -> None:
    """So that a range of time of it is empty, and not refused; after a crash too."""
    clock = Clock(1000.0)
    log = open_log(tmp_path, clock=clock)
    log.replay.create_table(make_config())
    assert log.replay.find("t").times.first_s == 1000
    log.crash()
    again = open_log(tmp_path, clock=clock).replay.find("t")
    assert again.times.first_s == 1000
    assert again.times.numbers(0, None, 0) == (0, 0)


def test_log_without_times_has_none_until_it_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of an earlier release: what is in it came at a time that nobody knows."""
    clock = Clock(1000.0)
    with monkeypatch.context() as earlier:
        earlier.setattr(InsertionTimes, "newest", None)
        earlier.setattr(InsertionTimes, "marks", ((), ()))
        log = open_log(tmp_path, clock=clock)
        log.replay.create_table(make_config())
        _write(log, clock, range(1000, 1005))
        log.crash()
    again = open_log(tmp_path, clock=clock)
    table = again.replay.find("t")
    assert (table.size, table.times.first_s) == (20, 0)
    assert table.ages_of(0, None, None, 5000.0) == (0, -1)
    _write(again, clock, range(2000, 2001))
    assert table.ages_of(0, None, None, 5000.0) == (0, 3)
