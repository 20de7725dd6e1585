"""A table of numbered steps, its writers, and what tests of a mirror check of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from tests.support.replay_service import CHUNK_LENGTH, open_appender
from tests.support.replay_streams import SIGNATURE, make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay.batch import SampledBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.limits import least_slots
from tidemill.replay.sampling.mirror import MirrorSize, TableMirror
from tidemill.replay.sampling.sample_stream import SampleStream

ITEM, BATCH, HOLD = 5, 16, 6
CONFIG = make_config(max_items=60, max_item_steps=ITEM)


def mirror(parts: int = 1, spare_slots: int = 40) -> TableMirror:
    """Return a mirror with a few slots more than the least."""
    slots = least_slots(BATCH, ITEM, CHUNK_LENGTH, HOLD) + spare_slots
    return TableMirror(SIGNATURE, MirrorSize(slots, CHUNK_LENGTH, HOLD), parts)


class Writer:
    """Appends one stream to a server for as long as a test needs it; its `stream` column names it."""

    def __init__(self, address: str, stream: int) -> None:
        self._stream, self._next = stream, 0
        self._appender = open_appender(address, f"writer-{stream}")

    def write(self, chunks: int = 1) -> None:
        """Append chunks with an item that ends at each step; waits until they are stored."""
        for _ in range(chunks):
            items = [(0, i, min(ITEM, self._next + i + 1)) for i in range(CHUNK_LENGTH)]
            chunk = make_chunk(self._stream, 0, self._next, CHUNK_LENGTH)
            assert self._appender.append([chunk], [make_items(0, items)], timeout_s=WAIT_S)
            self._next += CHUNK_LENGTH
        assert self._appender.flush(WAIT_S)

    def close(self) -> None:
        """End the call."""
        self._appender.close()


@contextmanager
def writers(*addresses: str) -> Iterator[list[Writer]]:
    """Open a writer to each server, and fill its table a little."""
    opened = [Writer(address, number + 1) for number, address in enumerate(addresses)]
    for writer in opened:
        writer.write(3)
    yield opened
    for writer in opened:
        writer.close()


def check(kept: TableMirror, batch: SampledBatch) -> set[int]:
    """Check that each item is consecutive steps of one stream, whole; return the streams."""
    rows = kept.rows_of(batch, ITEM)
    columns = {name: column[rows] for name, column in kept.columns.items()}
    assert kept.is_intact(batch)
    assert not batch.blocks
    within = np.maximum(np.arange(ITEM) - (ITEM - batch.lengths[:, None]), 0)
    steps = columns["step"]
    np.testing.assert_array_equal(steps, steps[:, :1] + within)
    np.testing.assert_array_equal(columns["frame"][..., 0], steps)
    np.testing.assert_array_equal(columns["frame"][..., 1], steps * 7)
    streams = columns["stream"][..., 0]
    np.testing.assert_array_equal(columns["frame"][..., 2], streams)
    assert (streams == streams[:, :1]).all()
    assert (steps[:, 0] < 1 + batch.params_versions.max()).all()
    return set(streams[:, 0].tolist())


def taken(sampler: SampleStream) -> SampledBatch:
    """Return the next batch; there must be one."""
    batch = sampler.take(WAIT_S)
    assert batch is not None
    return batch


def wait_for_tables(addresses: list[str]) -> None:
    """Wait until the sampler has created its table everywhere."""
    for address in addresses:
        with ReplayClient(address) as client:
            client.wait_for_ready(WAIT_S)
            wait_until(partial(_has_table, client), "the table")


def _has_table(client: ReplayClient) -> bool:
    return bool(client.list_tables())
