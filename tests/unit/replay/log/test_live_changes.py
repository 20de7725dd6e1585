"""What an operator changes of a running table holds at once, after a crash, and against clients unaware of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from tests.support.naming import because, naming
from tests.support.replay_streams import (
    append,
    make_chunk,
    make_config,
    make_items,
    make_replay,
    open_streams,
    steps_of,
)
from tests.unit.replay.logs import Log, open_log, sample_all
from tidemill.errors import AlreadyExists, InvalidArgument, NotFound, Reason, ResourceExhausted
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind, TableUpdate
from tidemill.services.replay.tables.table import Table

RANKED = SelectorConfig(SelectorKind.PRIORITIZED, 1.0)
CONFIG = make_config(sampler=RANKED, max_items=20)


def filled(path: Path, items: int = 16, actors: tuple[str, ...] = ("a",)) -> Log:
    """Return a log whose table has an item of one step for each step, of priority 1 + its number."""
    log = open_log(path, segment_bytes=2000)
    log.replay.create_table(CONFIG)
    for actor in actors:
        write(log, items, actor)
    return log


def write(log: Log, items: int, actor: str = "a") -> None:
    """Append steps of a new epoch of an actor, with an item at each."""
    session = open_streams(log.replay, actor, env_count=2)
    for first in range(0, items, 4):
        batch = make_items(0, [(0, i, 1) for i in range(4)], [1.0 + first + i for i in range(4)])
        append(log.replay, session, [make_chunk(session.epoch.number, first // 4 % 2, first // 8 * 4, 4)], [batch])


def reopened(log: Log) -> tuple[Log, Table]:
    """Return the log and its table after a crash."""
    log.crash()
    again = open_log(log.recovered.folder.path, segment_bytes=2000)
    assert not again.recovered.corruption.is_any
    return again, again.replay.find("t")


def keys_of(table: Table) -> set[int]:
    """Return the keys of all items."""
    return set(table.items.keys(table.items.live()).tolist())


@pytest.mark.parametrize(
    "update",
    [
        TableUpdate(max_items=12),
        TableUpdate(max_items=1000),
        TableUpdate(max_times_sampled=9),
        TableUpdate(priority_exponent=0.5),
        TableUpdate(max_bytes=10**6),
        TableUpdate(min_size=3, samples_per_insert=2.0, error_buffer=7.0),
        TableUpdate(queue_size=17),
    ],
    ids=lambda update: ", ".join(update.values),
)
def test_change_holds_after_a_crash_and_against_clients_that_declare_the_table_as_before(
    tmp_path: Path, update: TableUpdate
) -> None:
    """The value in force is the new one, whoever creates the table again, before a crash or after it."""
    log = filled(tmp_path)
    table = log.replay.find("t")
    log.replay.update_table(table, update)
    wanted = update.applied_to(CONFIG)
    contents = sorted(steps_of(sample_all(log, table)))
    keys, weight = keys_of(table), table.total_weight
    assert len(contents) == min(16, wanted.max_items)
    for _ in range(3):
        for declared in (CONFIG, wanted, CONFIG):
            assert log.replay.create_table(declared) is False
            assert table.config == wanted
        with pytest.raises(AlreadyExists, match="max_items"):
            log.replay.create_table(replace(CONFIG, max_items=77))
        log, table = reopened(log)
        assert table.config == wanted
        assert keys_of(table) == keys
        assert table.total_weight == pytest.approx(weight)
        assert sorted(steps_of(sample_all(log, table))) == contents
    log.crash()


def test_smaller_capacity_keeps_the_keys_of_items_that_need_not_move(tmp_path: Path) -> None:
    """The newest stay; a key of an item whose slot fits is still its key, and no key names another item."""
    log = filled(tmp_path)
    table = log.replay.find("t")
    before = dict(zip(table.items.oldest_first().tolist(), table.items.keys(table.items.oldest_first()), strict=True))
    log.replay.update_table(table, TableUpdate(max_items=10))
    assert [step for _, step in sorted(steps_of(sample_all(log, table)), key=lambda item: item[1])] != []
    stayed = [key for slot, key in before.items() if 6 <= slot < 10]  # the six oldest went
    _, found = table.items.find(np.array(stayed, dtype=np.uint64))
    assert found.all()
    moved = np.array([key for slot, key in before.items() if slot >= 10], dtype=np.uint64)
    assert not table.items.find(moved)[1].any()
    assert table.counters.evictions == 6
    log.crash()


def test_priority_exponent_weighs_the_priorities_again(tmp_path: Path) -> None:
    """The sum of weights is that of the priorities as they were given, to the power of the new exponent."""
    log = filled(tmp_path)
    table = log.replay.find("t")
    log.replay.update_table(table, TableUpdate(priority_exponent=2.0))
    assert table.total_weight == pytest.approx(sum(p**2 for p in range(1, 17)))
    log.crash()


def test_switched_off_limiter_counts_nothing_and_begins_even_when_it_is_on_again(tmp_path: Path) -> None:
    """While it is off both sides pass; then the ratio starts with neither ahead, as it is after a crash, too."""
    log = filled(tmp_path, 4)
    table = log.replay.find("t")
    limited = TableUpdate(min_size=2, samples_per_insert=1.0, error_buffer=2.0)
    log.replay.update_table(table, limited)
    write(log, 4)
    assert not table.can_insert()
    log.replay.update_table(table, TableUpdate(rate_limiter_on=False))
    log, table = reopened(log)
    assert not table.limiter.is_on
    assert table.can_insert()
    write(log, 8)
    table.draw(8).release(table.store)
    assert table.can_insert()
    assert table.can_sample()
    assert table.config.rate_limiter == RateLimiterConfig(2, 1.0, 2.0)
    log.replay.update_table(table, TableUpdate(rate_limiter_on=True))
    assert table.limiter.diff == 0
    write(log, 4)
    assert table.limiter.diff == 4
    log, table = reopened(log)
    assert table.limiter.is_on
    assert table.limiter.diff == 4
    log.crash()


def test_change_that_is_no_valid_table_changes_nothing(tmp_path: Path) -> None:
    """Each refusal names the field, the value and what is allowed; neither the table nor the log differs."""
    log = filled(tmp_path)
    table = log.replay.find("t")
    sequence = log.replay.sequence
    for update, message in (
        (TableUpdate(max_items=5, min_size=6), "rate_limiter.min_size 6 0 5"),
        (TableUpdate(max_items=10, samples_per_insert=2.0), "error_buffer 0.0 finite"),
        (
            TableUpdate(max_items=10, priority_exponent=-1.0),
            "priority_exponent -1.0 finite 0",
        ),
        (TableUpdate(queue_size=3, samples_per_insert=1.0, error_buffer=1.0), "queue_size 3 samples_per_insert 1.0"),
    ):
        with pytest.raises(InvalidArgument, match=naming(message)):
            log.replay.update_table(table, update)
    for values, message in (
        ({}, "max_items max_bytes"),
        ({"max_items": 0}, "max_items 0 1 2147483647"),
        ({"queue_size": -1}, "queue_size -1 0 2147483647"),
    ):
        with pytest.raises(InvalidArgument, match=naming(message)):
            TableUpdate(**values)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=naming("table 't' uniform")):
        TableUpdate(priority_exponent=0.5).applied_to(make_config())
    assert (table.config, table.size, log.replay.sequence) == (CONFIG, 16, sequence)
    log.crash()


def test_change_without_memory_for_one_limit_does_not_lower_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before items leave, whether an operator or a learner's settings ask for it."""
    log = filled(tmp_path)
    table, zeros = log.replay.find("t"), np.zeros
    keys = keys_of(table)

    def scarce(shape: int | tuple[int, ...], dtype: DTypeLike = float) -> NDArray[Any]:
        if np.prod(shape) > 10**6:
            raise MemoryError
        return zeros(shape, dtype)

    monkeypatch.setattr(np, "zeros", scarce)
    for change in (
        lambda: log.replay.update_table(table, TableUpdate(max_items=10**9, max_bytes=100)),
        lambda: log.replay.create_table(replace(CONFIG, max_items=10**9, max_bytes=100), redeclare=True),
    ):
        with pytest.raises(ResourceExhausted, match=naming("max_items 1000000000"), check=because(Reason.MEMORY_FULL)):
            change()
        assert (keys_of(table), table.config) == (keys, CONFIG)
    log.crash()


def test_new_exponent_needs_no_memory_for_other_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The items stay where they are; another sampler is all that is made."""
    log = filled(tmp_path)
    table = log.replay.find("t")

    def scarce(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tidemill.services.replay.tables.table.Items", scarce)
    monkeypatch.setattr("tidemill.services.replay.tables.table.SelectorPair.make", scarce)
    log.replay.update_table(table, TableUpdate(priority_exponent=2.0))
    assert table.total_weight == pytest.approx(sum(p**2 for p in range(1, 17)))
    log.crash()


def test_first_call_after_a_restart_may_declare_what_is_new_and_keeps_what_was_changed_in_use(tmp_path: Path) -> None:
    """A field with a third value was edited by somebody since; the others stay as the operator left them."""
    log = filled(tmp_path)
    log.replay.update_table(log.replay.find("t"), TableUpdate(max_items=12, max_times_sampled=5))
    log, table = reopened(log)
    log.replay.create_table(replace(CONFIG, max_items=15))
    assert (table.config.max_items, table.config.max_times_sampled) == (15, 5)
    log.replay.create_table(replace(CONFIG, max_items=15))
    with pytest.raises(AlreadyExists, match=naming("max_items 15 20")):
        log.replay.create_table(CONFIG)
    with pytest.raises(AlreadyExists, match=naming("max_times_sampled 5 0 4")):
        log.replay.create_table(replace(CONFIG, max_items=15, max_times_sampled=4))
    log.crash()


def test_items_are_deleted_by_writer_and_by_age(tmp_path: Path) -> None:
    """Those of every epoch of an actor, also after restarts of actor and server; those of one environment; old ones."""
    log = filled(tmp_path, 4, ("a", "b", "a", "c"))
    log, table = reopened(log)
    write(log, 4, "a")
    assert table.size == 20
    assert sum(log.replay.delete_matching(table, "a", 1, 0)) == 0  # it wrote to its first environment alone
    assert sum(log.replay.delete_matching(table, "a", 0, 5)) == 8
    assert sum(log.replay.delete_matching(table, "a", None, 0)) == 4
    assert sum(log.replay.delete_matching(table, "", None, 9)) == 4  # the ages of b's are 12 to 15, of c's 4 to 7
    assert {stream for stream, *_ in steps_of(sample_all(log, table))} == {4}
    log, table = reopened(log)
    assert table.size == 4
    with pytest.raises(NotFound, match=naming("actor_id 'd'"), check=because(Reason.UNKNOWN_ACTOR)):
        sum(log.replay.delete_matching(table, "d", None, 0))
    with pytest.raises(InvalidArgument, match=naming("env_index 2 0 1 actor_id 'c'")):
        sum(log.replay.delete_matching(table, "c", 2, 0))
    with pytest.raises(InvalidArgument, match=naming("actor_id '' min_age 0")):
        sum(log.replay.delete_matching(table, "", None, 0))
    log.crash()


def test_refused_actor_is_told_with_those_of_the_table_that_is_meant() -> None:
    """Not those of another table of the same server, whose steps have the same columns."""
    replay = make_replay(make_config("t"), make_config("other"))
    for actor, table in (("a", "t"), ("b", "other"), ("c", "t")):
        session = open_streams(replay, actor, tables=(table,))
        append(replay, session, [make_chunk(session.epoch.number, 0, 0, 4)], [make_items(0, [(0, 3, 1)])])
    with pytest.raises(NotFound, match=naming("actor_id 'A'", "'t': a, c")) as refused:
        sum(replay.delete_matching(replay.find("t"), "A", None, 0))
    assert "b" not in str(refused.value).split("'t': ")[1]


@pytest.mark.parametrize("resized", [False, True], ids=["as it is", "resized meanwhile"])
def test_items_that_come_while_others_are_deleted_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resized: bool
) -> None:
    """A large table is worked off in parts: what was there at the beginning goes, in whichever slot it is by then."""
    monkeypatch.setattr("tidemill.services.replay.state.replay_state._SLOTS_AT_ONCE", 4)
    log = filled(tmp_path, 8, ("a", "b"))
    table = log.replay.find("t")
    parts = log.replay.delete_matching(table, "a", None, 0)
    deleted = next(parts)
    write(log, 4, "a")
    if resized:
        log.replay.update_table(table, TableUpdate(max_items=1000))
    assert deleted + sum(parts) == 8
    log, table = reopened(log)
    assert sorted(stream for stream, *_ in steps_of(sample_all(log, table))) == [2] * 8 + [3] * 4
    log.crash()


def test_items_that_move_while_they_are_deleted_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that shrinks has them in slots at which the deletion has looked already."""
    monkeypatch.setattr("tidemill.services.replay.state.replay_state._SLOTS_AT_ONCE", 4)
    log = filled(tmp_path, 8, ("a", "b"))
    table = log.replay.find("t")
    parts = log.replay.delete_matching(table, "b", None, 0)
    assert next(parts) == 0
    log.replay.update_table(table, TableUpdate(max_items=10))
    assert sum(parts) == 8
    log, table = reopened(log)
    assert sorted(steps_of(sample_all(log, table))) == [(1, 2), (1, 3)]
    log.crash()


def test_crash_while_a_table_shrinks_leaves_the_former_one_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any part: no item that the new configuration keeps is lost, nor any that was written meanwhile."""
    monkeypatch.setattr("tidemill.services.replay.state.replay_state._SLOTS_AT_ONCE", 4)
    crashes = itertools.count(1)
    is_whole = False
    while not is_whole:
        log = filled(tmp_path / str(number := next(crashes)))
        table = log.replay.find("t")
        parts = log.replay.shrink(table, replace(CONFIG, max_items=5))
        done = [next(parts, None) for _ in range(number)]
        is_whole = done[-1] is None
        write(log, 4, "b")
        contents, keys = sorted(steps_of(sample_all(log, table))), keys_of(table)
        log, table = reopened(log)
        assert (table.config, keys_of(table)) == (CONFIG, keys)
        assert sorted(steps_of(sample_all(log, table))) == contents
        assert contents[-5:] == [(1, 7), (2, 0), (2, 1), (2, 2), (2, 3)]
        log.crash()
    assert number > 5


def test_deletion_from_a_table_that_is_dropped_meanwhile_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told."""
    monkeypatch.setattr("tidemill.services.replay.state.replay_state._SLOTS_AT_ONCE", 4)
    log = filled(tmp_path)
    parts = log.replay.delete_matching(log.replay.find("t"), "a", None, 0)
    assert next(parts) == 4
    log.replay.drop_table(log.replay.find("t"))
    with pytest.raises(NotFound, match=naming("table 't'"), check=because(Reason.UNKNOWN_TABLE)):
        next(parts)
    log.crash()


def test_closed_streams_are_forgotten_once_nothing_is_left_of_them(tmp_path: Path) -> None:
    """An actor that starts again and again is remembered for as long as the table has its items, not for ever."""
    log = open_log(tmp_path)
    log.replay.create_table(CONFIG)
    for _ in range(300):
        write(log, 4)
    assert len(log.replay.streams.closed) <= 64
    assert sum(log.replay.delete_matching(log.replay.find("t"), "a", None, 0)) == 20
    log.crash()
