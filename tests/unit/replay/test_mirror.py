"""A mirror: what a caller keeps equals what the server would have sent, whatever is appended, evicted or sampled."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.naming import naming
from tests.support.replay_streams import (
    SIGNATURE,
    append,
    make_chunk,
    make_config,
    make_items,
    make_replay,
    open_streams,
)
from tidemill.errors import DataLoss, FailedPrecondition
from tidemill.replay import codec, wire
from tidemill.replay.batch import SampledBatch, StoredSteps
from tidemill.replay.limits import least_slots
from tidemill.replay.sampling.mirror import MirrorSize, TableMirror
from tidemill.replay.sampling.shared_arrays import SharedArrays
from tidemill.replay.table_config import TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.services.replay.chunks.mirror import ChunkMirror
from tidemill.services.replay.state.replay_state import ReplayState

pytestmark = pytest.mark.requires_linux  # each mirror is compared with one in shared memory

CHUNK, ITEM, BATCH = 4, 6, 3


@dataclass
class Pair:
    """A table, and the mirror of one call that samples it, on both sides.

    Attributes:
        replay: The server's state.
        size: What the caller keeps.
        mirror: The caller's rows.
        shared: The same in memory that other processes may map.
        reader: What one of them sees.
    """

    replay: ReplayState
    size: MirrorSize
    mirror: TableMirror
    shared: TableMirror
    reader: TableMirror
    epoch: int = 0

    def __post_init__(self) -> None:
        self.connect()

    def connect(self) -> None:
        """Begin another call: the server knows nothing of what the caller has."""
        self.chunks = ChunkMirror(self.replay.find("t").store, self.size.slots, self.size.hold)

    def sample(self) -> tuple[SampledBatch, SampledBatch]:
        """Draw a batch; return it with all its blocks, and as the caller of a mirrored call keeps it."""
        table = self.replay.find("t")
        drawn = table.draw(BATCH)
        full = drawn.with_blocks(table.store.blocks.read(drawn.chunks, drawn.batch.step_counts))
        lacked = self.chunks.missing(drawn.chunks)
        blocks = table.store.blocks.read(drawn.chunks[lacked], drawn.batch.step_counts[lacked])
        sent = drawn.with_blocks(blocks, self.chunks.place(drawn.chunks), lacked)
        drawn.release(table.store)
        message = wire.pack_sample(sent, StoredSteps(1, 0), 0.0)
        received = wire.unpack_sample(pb.SampleResponse.FromString(message), mirrored=True)
        return full, self.keep(received)

    def keep(self, received: SampledBatch) -> SampledBatch:
        """Keep a batch in the caller's own memory and in the shared one, which must not differ."""
        kept, shared = self.mirror.keep(received), self.shared.keep(received)
        np.testing.assert_array_equal(kept.writes, shared.writes)
        np.testing.assert_array_equal(kept.slots, shared.slots)
        return kept

    @property
    def mirrors(self) -> tuple[TableMirror, ...]:
        """All that must agree."""
        return self.mirror, self.shared, self.reader

    def is_intact(self, batch: SampledBatch) -> bool:
        """Return the reports of all mirrors."""
        (answer,) = {mirror.is_intact(batch) for mirror in self.mirrors}
        return answer

    def corrupt_chunks(self, batch: SampledBatch) -> list[int]:
        """Return the reports of all mirrors."""
        (answer,) = {tuple(mirror.corrupt_chunks(batch).tolist()) for mirror in self.mirrors}
        return list(answer)

    def check(self, full: SampledBatch, kept: SampledBatch) -> None:
        """Check that the rows of a kept batch are bit for bit those of the whole one, in every mirror."""
        assert self.is_intact(kept)
        decoded = codec.decode(SIGNATURE, full, ITEM)
        for mirror in self.mirrors:
            rows = mirror.rows_of(kept, ITEM)
            for name, column in decoded.columns.items():
                np.testing.assert_array_equal(mirror.columns[name][rows], column[decoded.index])


def pair(hold: int, spare_slots: int, config: TableConfig | None = None) -> Pair:
    """Return a mirror of the least slots and some more."""
    slots = least_slots(BATCH, ITEM, CHUNK, hold) + spare_slots
    size = MirrorSize(slots, CHUNK, hold)
    replay = make_replay(config or make_config(max_items=20, max_item_steps=ITEM))
    arrays = SharedArrays()
    shared = TableMirror(SIGNATURE, size, reserve=arrays.reserve)
    arrays.seal()
    fetched = SharedArrays(os.dup(arrays.descriptor))
    reader = TableMirror(SIGNATURE, size, reserve=fetched.reserve)
    arrays.close()
    fetched.close()
    return Pair(replay, size, TableMirror(SIGNATURE, size), shared, reader)


def fill(pairs: Pair, first_step: int, chunks: int) -> None:
    """Append chunks of a stream, with an item that ends at each step."""
    session = open_streams(pairs.replay, "a", pairs.epoch)
    pairs.epoch = session.epoch.number
    for start in range(first_step, first_step + CHUNK * chunks, CHUNK):
        items = [(0, offset, min(ITEM, start + offset + 1)) for offset in range(CHUNK)]
        append(pairs.replay, session, [make_chunk(session.epoch.number, 0, start, CHUNK)], [make_items(0, items)])
    pairs.replay.close_streams(session.epoch)


@given(
    st.lists(st.sampled_from(["append", "sample", "sample", "sample", "reconnect", "read", "reset"]), max_size=60),
    st.integers(0, 3),
    st.integers(0, 12),
)
def test_kept_rows_equal_those_that_were_sent(steps: list[str], hold: int, spare_slots: int) -> None:
    """Batches are read as much later as `hold` allows, through evictions, reconnections and slots that run out.

    By whoever keeps them, and by a process that maps the memory of one that does.
    """
    pairs, next_step = pair(hold, spare_slots), 0
    waiting: deque[tuple[SampledBatch, SampledBatch]] = deque()
    for step in ["append", *steps]:
        if step == "append":
            fill(pairs, next_step, 2)
            next_step += 2 * CHUNK
        elif step == "sample" and pairs.replay.find("t").size:
            waiting.append(pairs.sample())
            if len(waiting) > hold:
                pairs.check(*waiting.popleft())
        elif step == "reconnect":  # nothing holds slots over two calls: what was not read until then may be lost
            while waiting:
                pairs.check(*waiting.popleft())
            pairs.chunks.close()
            pairs.connect()
        elif step == "read" and waiting:
            pairs.check(*waiting.popleft())
        elif step == "reset":
            pairs.replay.reset(pairs.replay.find("t"))
    while waiting:
        pairs.check(*waiting.popleft())


def test_each_chunk_is_sent_once() -> None:
    """With room for the whole table no block crosses twice, however often its items are drawn."""
    pairs = pair(2, 20)
    fill(pairs, 0, 5)
    sent = sum(len(kept.sent) for _, kept in (pairs.sample() for _ in range(50)) if kept.sent is not None)
    assert sent == 5


def test_freed_chunks_leave_their_slots_first() -> None:
    """A turning table of fewer chunks than slots never loses one that is still there."""
    pairs = pair(0, 8)
    fill(pairs, 0, 5)
    seen: dict[int, int] = {}
    for turn in range(40):
        fill(pairs, CHUNK * (5 + turn), 1)
        for _ in range(5):
            full, kept = pairs.sample()
            assert kept.sent is not None
            chunks = full.params_versions.astype(int)  # names the chunk, see `make_chunk`
            for position in kept.sent.tolist():
                seen[chunks[position]] = seen.get(chunks[position], 0) + 1
    assert set(seen.values()) == {1}


def test_rows_that_were_written_over_are_noticed() -> None:
    """A caller that reads later than it said gets an error, instead of being given another chunk's rows."""
    pairs = pair(0, 0)
    fill(pairs, 0, 3)
    _, late = pairs.sample()
    pairs.connect()  # forgets what the caller has, and writes over it
    pairs.sample()
    pairs.sample()
    assert not pairs.is_intact(late)


def test_corrupt_chunk_stays_known() -> None:
    """Its blocks come once: every later batch that needs it fails as well."""
    pairs = pair(0, 20)
    fill(pairs, 0, 1)
    table = pairs.replay.find("t")
    store = table.store
    blocks = store.blocks.read(np.array([0]), np.array([CHUNK]))
    frame = bytes([255]) * len(blocks[0].data)
    drawn = table.draw(BATCH)
    broken = (type(blocks[0])(frame, blocks[0].sizes), *blocks[1:])
    sent = drawn.with_blocks(broken, pairs.chunks.place(drawn.chunks), np.array([0]))
    kept = pairs.keep(sent)
    assert pairs.corrupt_chunks(kept) == [0]
    _, again = pairs.sample()
    assert again.sent is not None
    assert not len(again.sent)
    assert pairs.corrupt_chunks(again) == [0]


def test_sound_chunk_is_not_blamed_for_a_corrupt_one_written_over_it() -> None:
    """Its items would be removed from the table."""
    pairs = pair(0, 20)
    fill(pairs, 0, 1)
    _, late = pairs.sample()
    pairs.connect()  # the next chunk goes to the same slot
    table = pairs.replay.find("t")
    drawn = table.draw(BATCH)
    blocks = table.store.blocks.read(drawn.chunks, drawn.batch.step_counts)
    broken = (type(blocks[0])(bytes([255]) * len(blocks[0].data), blocks[0].sizes), *blocks[1:])
    kept = pairs.keep(drawn.with_blocks(broken, pairs.chunks.place(drawn.chunks), np.array([0])))
    assert pairs.corrupt_chunks(kept) == [0]
    assert pairs.corrupt_chunks(late) == []
    assert not pairs.is_intact(late)


def test_slots_that_are_not_there_are_refused() -> None:
    """A server cannot have rows written outside of the mirror."""
    pairs = pair(0, 0)
    fill(pairs, 0, 1)
    table = pairs.replay.find("t")
    drawn = table.draw(BATCH)
    blocks = table.store.blocks.read(drawn.chunks, drawn.batch.step_counts)
    with pytest.raises(DataLoss, match=r"slot|outside"):
        pairs.mirror.keep(drawn.with_blocks(blocks, np.array([pairs.size.slots]), np.array([0])))


def test_batches_of_more_chunks_than_slots_are_refused() -> None:
    """As with chunks shorter than the caller thinks; the server's loop looked for a slot for ever."""
    replay = make_replay(make_config())
    opened = open_streams(replay)
    for number in range(3):
        append(replay, opened, [make_chunk(0, 0, CHUNK * number, CHUNK)], [make_items(0, [(0, 0, 1)])])
    mirror = ChunkMirror(replay.find("t").store, slots=2, hold=0)
    first = mirror.place(np.array([0, 1]))
    with pytest.raises(FailedPrecondition, match=naming("mirror.slots 2 keep.chunk_length")):
        mirror.place(np.array([0, 1, 2]))
    assert mirror.place(np.array([2])).tolist()[0] in first
    assert sorted(mirror.place(np.array([1, 2]))) == sorted(first)
