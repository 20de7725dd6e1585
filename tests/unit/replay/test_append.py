"""What a message of an actor may hold, and that a wrong one changes nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.support.naming import because, naming
from tests.support.replay_streams import (
    SIGNATURE,
    append,
    make_chunk,
    make_config,
    make_items,
    make_replay,
    open_streams,
    sample_from,
    steps_of,
)
from tidemill.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Reason, ResourceExhausted
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.limits import lz4_bound
from tidemill.services.replay.state.append import AppendSession
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.types import ColumnSpec


@pytest.fixture
def replay() -> ReplayState:
    """A state with a table of items of up to 5 steps."""
    return make_replay(make_config())


@pytest.fixture
def opened(replay: ReplayState) -> AppendSession:
    """Two streams in chunks of 4, the first of which has 8 steps and 8 items."""
    opened = open_streams(replay, env_count=2)
    items = [(i // 4, i % 4, 1) for i in range(8)]
    append(replay, opened, [make_chunk(0, 0, 0, 4), make_chunk(0, 0, 4, 4)], [make_items(0, items)])
    return opened


def snapshot(replay: ReplayState, opened: AppendSession) -> tuple[Any, ...]:
    """Return everything a message could change."""
    table = replay.find("t")
    return (
        table.size,
        table.counters.inserts,
        replay.chunks,
        replay.chunk_bytes,
        replay.env_steps,
        opened.epoch.next_steps(),
    )


GOOD = make_chunk(0, 0, 8, 4)


def changed(**fields: Any) -> Chunk:  # noqa: ANN401 - any field of a chunk
    """Return a good next chunk with some fields replaced."""
    return dataclasses.replace(GOOD, **fields)


def blocks_with(index: int, block: bytes) -> tuple[bytes, ...]:
    """Return a good chunk's blocks with one replaced."""
    blocks = list(GOOD.blocks)
    blocks[index] = block
    return tuple(blocks)


@pytest.mark.parametrize(
    "chunk, message",
    [
        (changed(env_index=2), "env_index 2 env_count 2"),
        (changed(step_count=0), "step_count 0 1 chunk_length 4"),
        (changed(step_count=5), "step_count 5"),
        (changed(first_step=9), "first_step 9"),
        (changed(decision_count=5), "decision_count 5 4"),
        (changed(blocks=GOOD.blocks[:2]), "columns 2 3"),
        (changed(blocks=(*GOOD.blocks, b"")), "columns 4 3"),
        (changed(blocks=blocks_with(1, b"x" * 31)), "column 'step' 31 32 4"),
        (changed(blocks=blocks_with(2, b"")), "column 'stream' 0 16"),
        (changed(blocks=blocks_with(0, b"")), "column 'frame' 0 1 112"),
        (changed(blocks=blocks_with(0, b"x" * 113)), "column 'frame' 113"),
        (changed(step_count=3, decision_count=3), "column 'step' 32 24 3"),
    ],
)
def test_malformed_chunk_is_refused_and_nothing_is_stored(
    replay: ReplayState, opened: AppendSession, chunk: Chunk, message: str
) -> None:
    """A message with one wrong chunk after a good one is refused whole, with the field and its value."""
    before = snapshot(replay, opened)
    with pytest.raises(InvalidArgument, match=naming(message)):
        append(replay, opened, [make_chunk(1, 1, 0, 4), chunk], [make_items(0, [(0, 0, 1)])])
    assert snapshot(replay, opened) == before


def items_with(**columns: Any) -> ItemBatch:  # noqa: ANN401 - any field of a batch of items
    """Return a batch of one good item with some fields replaced."""
    columns = {name: np.array(value) if isinstance(value, list) else value for name, value in columns.items()}
    return dataclasses.replace(make_items(0, [(0, 3, 2)]), **columns)


@pytest.mark.parametrize(
    "items, message",
    [
        ([items_with(table_index=1)], "table_index 1 1"),
        ([items_with(), items_with()], "table_index 0"),
        ([items_with(chunk_indices=[2])], "chunk_indices[0] 2 2"),
        ([items_with(last_offsets=[4])], "last_offsets[0] 4 step_count"),
        ([items_with(lengths=[0])], "lengths[0] 0 1 max_item_steps 5"),
        ([items_with(lengths=[6])], "lengths[0] 6 1 max_item_steps 5"),
        ([items_with(chunk_indices=[1], lengths=[5])], "lengths[0] 5 0"),
        ([items_with(priorities=[-1.1e39])], "priorities[0] -1.1e+39 finite -1e+39 1e+39"),
        ([items_with(priorities=[np.nan])], "priorities[0] nan"),
        ([items_with(priorities=[np.inf])], "priorities[0] inf"),
        ([items_with(priorities=[1.1e39])], "priorities[0] 1.1e+39 finite -1e+39 1e+39"),
        ([items_with(priorities=[1.0, 1.0])], "priorities 2 1"),
        ([items_with(chunk_indices=[0, 0])], "chunk_indices 2 1"),
        ([items_with(last_offsets=np.zeros(0, int))], "last_offsets 0 1"),
        ([items_with(times_sampled=[1, 1])], "times_sampled 2 1"),
        ([items_with(payloads=(b"x",))], "payloads 1 0 payload_bytes table 't' 0"),
    ],
)
def test_malformed_items_are_refused_and_nothing_is_stored(
    replay: ReplayState, opened: AppendSession, items: list[ItemBatch], message: str
) -> None:
    """Items that are wrong take the good chunks of their message with them."""
    before = snapshot(replay, opened)
    with pytest.raises(InvalidArgument, match=naming(message)):
        append(replay, opened, [make_chunk(0, 0, 8, 4), make_chunk(1, 1, 0, 4)], items)
    assert snapshot(replay, opened) == before


@pytest.mark.parametrize(
    "payloads, message",
    [
        ((), "payloads 0 1 payload_bytes table 't' 8"),
        ((bytes(8), bytes(8)), "payloads 2 1"),
        ((b"",), "payload 0 8 table 't'"),
        ((bytes(3),), "payload 3 8"),
        ((bytes(65_537),), "payload 65537 8"),
    ],
)
def test_payload_of_another_size_than_the_tables_is_refused(payloads: tuple[bytes, ...], message: str) -> None:
    """A learner would not know what to make of it, and the item might never leave."""
    replay = make_replay(make_config(payload_bytes=8))
    opened = open_streams(replay)
    before = snapshot(replay, opened)
    with pytest.raises(InvalidArgument, match=naming(message)):
        append(replay, opened, [make_chunk(0, 0, 0, 4)], [items_with(payloads=payloads)])
    assert snapshot(replay, opened) == before
    append(replay, opened, [make_chunk(0, 0, 0, 4)], [items_with(payloads=(b"12345678",))])
    assert sample_from(replay.find("t"), 1).payloads == (b"12345678",)


def test_item_that_reaches_into_freed_steps_is_refused() -> None:
    """A table created later with longer items cannot be given steps that the streams no longer hold."""
    replay = make_replay(make_config(max_item_steps=2))
    opened = open_streams(replay)
    for first in range(0, 20, 4):
        append(replay, opened, [make_chunk(0, 0, first, 4)])
    replay.create_table(make_config("long", max_item_steps=20))
    resumed = open_streams(replay, epoch=opened.epoch.number, tables=("t", "long"))
    with pytest.raises(InvalidArgument, match=naming("lengths[0] 12")):
        append(replay, resumed, [make_chunk(0, 0, 20, 4)], [make_items(1, [(0, 3, 12)])])
    append(replay, resumed, [make_chunk(0, 0, 20, 4)], [make_items(1, [(0, 3, 8)])])
    assert steps_of(sample_from(replay.find("long"), 1)) == [(0, *range(16, 24))]


def test_table_added_later_keeps_its_longer_steps_for_items_to_come() -> None:
    """Once an epoch is resumed with a table of longer items, its streams hold as many steps as those need."""
    replay = make_replay(make_config(max_item_steps=2))
    opened = open_streams(replay)
    replay.create_table(make_config("long", max_item_steps=20))
    resumed = open_streams(replay, epoch=opened.epoch.number, tables=("t", "long"))
    for first in range(0, 20, 4):
        append(replay, resumed, [make_chunk(0, 0, first, 4)])
    append(replay, resumed, [make_chunk(0, 0, 20, 4)], [make_items(1, [(0, 3, 20)])])
    assert steps_of(sample_from(replay.find("long"), 1)) == [(0, *range(4, 24))]


def test_repeated_chunk_is_skipped_with_its_items(replay: ReplayState, opened: AppendSession) -> None:
    """A message sent again changes nothing; one that repeats and continues stores only what is new."""
    before = snapshot(replay, opened)
    repeated = [make_chunk(0, 0, 0, 4), make_chunk(0, 0, 4, 4)]
    append(replay, opened, repeated, [make_items(0, [(0, 0, 1), (1, 3, 5)])])
    assert snapshot(replay, opened) == before
    append(replay, opened, [*repeated, make_chunk(0, 0, 8, 4)], [make_items(0, [(1, 0, 1), (2, 1, 5)])])
    table = replay.find("t")
    assert table.size == 9
    assert (0, 5, 6, 7, 8, 9) in steps_of(sample_from(table, 9, without_replacement=True))
    assert replay.env_steps == 12


def test_gap_is_refused(replay: ReplayState, opened: AppendSession) -> None:
    """A chunk that leaves steps out is refused with the step the stream wants."""
    before = snapshot(replay, opened)
    with pytest.raises(FailedPrecondition, match=naming("first_step 12 gap 8"), check=because(Reason.STREAM_GAP)):
        append(replay, opened, [make_chunk(0, 0, 12, 4)])
    with pytest.raises(FailedPrecondition, match=naming("gap")):
        append(replay, opened, [make_chunk(0, 0, 8, 4), make_chunk(0, 0, 16, 4)])
    assert snapshot(replay, opened) == before


def test_short_chunk_ends_its_stream(replay: ReplayState, opened: AppendSession) -> None:
    """After a chunk of fewer steps nothing more is taken; items over it can still be sampled."""
    append(replay, opened, [make_chunk(0, 0, 8, 2)], [make_items(0, [(0, 1, 5)])])
    for chunk in (make_chunk(0, 0, 12, 4), make_chunk(0, 0, 8, 4)):
        with pytest.raises(FailedPrecondition, match=naming("10"), check=because(Reason.STREAM_ENDED)):
            append(replay, opened, [chunk])
    sampled = steps_of(sample_from(replay.find("t"), 9, without_replacement=True))
    assert (0, 5, 6, 7, 8, 9) in sampled
    append(replay, opened, [make_chunk(0, 0, 8, 2)])  # a repetition is still recognised


def test_new_epoch_supersedes_the_old_one(replay: ReplayState, opened: AppendSession) -> None:
    """A second process under the same name takes over; the first is refused, at once and when it resumes."""
    second = open_streams(replay, env_count=2)
    assert second.epoch.number > opened.epoch.number
    assert second.epoch.next_steps() == [0, 0]
    with pytest.raises(FailedPrecondition, match=naming("actor_id"), check=because(Reason.EPOCH_SUPERSEDED)):
        append(replay, opened, [GOOD])
    with pytest.raises(FailedPrecondition, match="superseded"):
        open_streams(replay, epoch=opened.epoch.number, env_count=2)


def test_known_epoch_is_resumed(replay: ReplayState, opened: AppendSession) -> None:
    """Opening a known epoch continues where it was; another shape of it is refused."""
    number = opened.epoch.number
    resumed = open_streams(replay, epoch=number, env_count=2)
    assert resumed.epoch.next_steps() == [8, 0]
    with pytest.raises(InvalidArgument, match=naming("env_count 3 2")):
        open_streams(replay, epoch=number, env_count=3)
    with pytest.raises(InvalidArgument, match=naming("chunk_length 5 4")):
        open_streams(replay, epoch=number, env_count=2, chunk_length=5)


def test_items_that_were_sampled_elsewhere_keep_the_count() -> None:
    """As an import sends them; one that was sampled as often as it may is not inserted, nor counted."""
    replay = make_replay(make_config(max_times_sampled=3))
    opened = open_streams(replay)
    items = dataclasses.replace(make_items(0, [(0, i, 1) for i in range(4)]), times_sampled=np.array([2, 3, 0, 7]))
    append(replay, opened, [make_chunk(0, 0, 0, 4)], [items])
    table = replay.find("t")
    oldest_first = table.items.oldest_first()
    assert table.items.times_sampled[oldest_first].tolist() == [2, 0]
    assert table.items.offsets[oldest_first].tolist() == [0, 2]
    assert (table.counters.inserts, table.can_sample(4), table.can_sample(5)) == (2, True, False)


def test_unknown_epoch_begins_anew(replay: ReplayState) -> None:
    """An epoch from before the server's restart is answered with a new one."""
    assert open_streams(replay, epoch=99).epoch.number == 1


def test_epoch_never_given_to_a_known_actor_begins_anew(replay: ReplayState, opened: AppendSession) -> None:
    """An epoch above the newest is from before the server's restart: its steps are not those stored now."""
    later = open_streams(replay, epoch=opened.epoch.number + 1000, env_count=2)
    assert later.epoch.number == opened.epoch.number + 1
    assert later.epoch.next_steps() == [0, 0]
    with pytest.raises(FailedPrecondition, match="superseded"):
        append(replay, opened, [GOOD])


def test_wrong_opening_is_refused(replay: ReplayState) -> None:
    """Names, counts and signatures are checked, each error naming what is wrong."""
    with pytest.raises(InvalidArgument, match=naming("actor_id '../x'")):
        open_streams(replay, "../x")
    with pytest.raises(InvalidArgument, match=naming("env_count 0")):
        open_streams(replay, env_count=0)
    with pytest.raises(InvalidArgument, match=naming("chunk_length 1025")):
        open_streams(replay, chunk_length=1025)
    with pytest.raises(InvalidArgument, match=naming("0")):
        open_streams(replay, tables=())
    with pytest.raises(InvalidArgument, match=naming("tables ['t', 't']")):
        open_streams(replay, tables=("t", "t"))
    with pytest.raises(NotFound, match=naming("table 'other'")):
        open_streams(replay, tables=("other",))
    other = (ColumnSpec("frame", "int64", (4,), SIGNATURE[0].codec), *SIGNATURE[1:])
    with pytest.raises(FailedPrecondition, match=naming("shape=(4,)")):
        replay.open_streams("a", 0, 1, ["t"], other, 4)
    with pytest.raises(FailedPrecondition, match=naming("signature")):
        replay.open_streams("a", 0, 1, ["t"], SIGNATURE[:2], 4)


def test_streams_of_the_longest_idle_actor_make_room() -> None:
    """Beyond max_streams the streams of actors that are gone are forgotten; connected ones are not."""
    replay = make_replay(make_config(), max_streams=4)
    for actor_id in ("one", "two"):
        gone = open_streams(replay, actor_id, env_count=2)
        append(replay, gone, [make_chunk(0, 0, 0, 4)])
        replay.close_streams(gone.epoch)
    open_streams(replay, "three", env_count=2)
    assert replay.streams.count == 4
    assert replay.chunks == 1  # the tail of "two"
    assert open_streams(replay, "one", epoch=1, env_count=2).epoch.number == 4  # forgotten, and "two" with it
    with pytest.raises(ResourceExhausted, match=naming("env_count 1 max_streams 4")):
        open_streams(replay, "four")


def test_table_with_another_configuration_is_refused(replay: ReplayState) -> None:
    """Creating an equal table is fine; a different one of the same name is refused with what differs."""
    assert not replay.create_table(make_config())
    with pytest.raises(AlreadyExists, match=naming("max_items 100 7")):
        replay.create_table(make_config(max_items=7))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 112_896])
def test_lz4_bound_is_that_of_the_library(size: int) -> None:
    """Incompressible data stay within the bound."""
    import lz4.block

    noise = np.random.default_rng(0).bytes(size)
    assert len(lz4.block.compress(noise, store_size=False)) <= lz4_bound(size)
