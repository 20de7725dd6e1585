"""Streams whose every step says where it comes from, and what a test needs to append and check them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidemill.replay.batch import SampledBatch
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.codec import decode, encode
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind, TableConfig
from tidemill.services.replay.state.append import AppendSession, plan_append
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.table import Table
from tidemill.types import Codec, ColumnSpec, Signature

SIGNATURE: Signature = (
    ColumnSpec("frame", "int64", (3,), Codec.LZ4),
    ColumnSpec("step", "int64", ()),
    ColumnSpec("stream", "int32", (1,)),
)

UNIFORM = SelectorConfig(SelectorKind.UNIFORM)
FIFO = SelectorConfig(SelectorKind.FIFO)


def make_replay(*tables: TableConfig, max_streams: int = 1000) -> ReplayState:
    """Return a state with tables."""
    replay = ReplayState(max_tables=16, max_streams=max_streams, first_epoch=1, rng=np.random.default_rng(3))
    for table in tables:
        replay.create_table(table)
    return replay


def make_config(
    name: str = "t",
    sampler: SelectorConfig = UNIFORM,
    max_items: int = 100,
    max_item_steps: int = 5,
    remover: SelectorConfig = FIFO,
    limiter: RateLimiterConfig | None = None,
    max_times_sampled: int = 0,
    max_bytes: int = 0,
    *,
    payload_bytes: int = 0,
) -> TableConfig:
    """Return a table over the streams of this module."""
    return TableConfig(
        name=name,
        signature=SIGNATURE,
        sampler=sampler,
        max_items=max_items,
        max_item_steps=max_item_steps,
        remover=remover,
        rate_limiter=limiter or RateLimiterConfig(),
        max_times_sampled=max_times_sampled,
        max_bytes=max_bytes,
        payload_bytes=payload_bytes,
    )


def make_chunk(stream: int, env_index: int, first_step: int, steps: int) -> Chunk:
    """Return a chunk whose `step` column counts and whose `stream` column names the stream."""
    numbers = np.arange(first_step, first_step + steps)
    columns: dict[str, NDArray[np.generic]] = {
        "frame": np.stack([numbers, numbers * 7, numbers * 0 + stream], axis=1),
        "step": numbers,
        "stream": np.full((steps, 1), stream, dtype=np.int32),
    }
    return Chunk(env_index, first_step, steps, steps, 1 + first_step, encode(SIGNATURE, columns))


def make_items(
    table_index: int,
    items: Sequence[tuple[int, int, int]],
    priorities: Sequence[float] | None = None,
    payloads: Sequence[bytes] = (),
) -> ItemBatch:
    """Return items from (chunk index, last offset, length)."""
    columns = np.array(items, dtype=np.int64).reshape(-1, 3)
    values = np.ones(len(items)) if priorities is None else np.array(priorities, dtype=np.float64)
    return ItemBatch(table_index, columns[:, 0], columns[:, 1], columns[:, 2], values, tuple(payloads))


def append(
    replay: ReplayState, session: AppendSession, chunks: Sequence[Chunk], items: Sequence[ItemBatch] = ()
) -> None:
    """Check and store one message."""
    replay.append(session, plan_append(session, chunks, items), chunks, items)


def open_streams(
    replay: ReplayState,
    actor_id: str = "a",
    epoch: int = 0,
    env_count: int = 1,
    tables: Sequence[str] = ("t",),
    chunk_length: int = 4,
) -> AppendSession:
    """Open streams of this module's signature."""
    return replay.open_streams(actor_id, epoch, env_count, tables, SIGNATURE, chunk_length)


def sample_from(table: Table, batch_size: int, without_replacement: bool = False) -> SampledBatch:
    """Draw a batch that arrives, and read its blocks, which must be in memory."""
    drawn = table.draw(batch_size, without_replacement)
    table.arrived(drawn.batch.keys, drawn.eras)
    try:
        return drawn.with_blocks(table.store.blocks.read(drawn.chunks, drawn.batch.step_counts))
    finally:
        drawn.release(table.store)


def numbers_of(table: Table, keys: NDArray[np.uint64]) -> list[int]:
    """Return the insertion numbers of items by key, all in the table."""
    slots, found = table.items.find(keys)
    assert found.all()
    return [int(number) for number in table.items.numbers(slots)]


def steps_of(sample: SampledBatch) -> list[tuple[int, ...]]:
    """Return (stream, first step, ..., last step) of each item of a sample, read from its decoded columns."""
    decoded = decode(SIGNATURE, sample, int(sample.lengths.max(initial=1)))
    columns = decoded.columns
    np.testing.assert_array_equal(columns["frame"][:, 0], columns["step"])
    np.testing.assert_array_equal(columns["frame"][:, 2], columns["stream"][:, 0])
    found = []
    for rows, length in zip(decoded.index, sample.lengths.tolist(), strict=True):
        item = rows[len(rows) - length :]
        found.append((_only(columns["stream"][item, 0]), *columns["step"][item].tolist()))
    return found


def _only(values: NDArray[np.int32]) -> int:
    assert len(set(values.tolist())) == 1, "an item crosses streams"
    return int(values[0])


def held_chunks(replay: ReplayState, table_names: Sequence[str]) -> set[int]:
    """Return the chunks that a store of `SIGNATURE` holds."""
    return set(replay.find(table_names[0]).store.held().tolist())
