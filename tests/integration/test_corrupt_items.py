"""Garbage that a replay service takes, since it never decompresses, and what the learner's side makes of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing

import numpy as np
import pytest

from tests.support.learner_fakes import FakeAgent
from tests.support.replay_service import CHUNK_LENGTH, local_server, open_appender
from tests.support.replay_streams import SIGNATURE, make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.config.run import ClusterSettings
from tidemill.config.table import TableSettings
from tidemill.replay.sampling.mirror import MirrorSize, TableMirror
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.services.learner.counters import Counters
from tidemill.services.learner.data.batch_loader import BatchLoader
from tidemill.services.learner.data.corrupt_items import CorruptItemFilter
from tidemill.services.learner.data.decoder import Decoder
from tidemill.services.learner.data.device import DevicePrefetcher, resolve_device
from tidemill.services.learner.data.table import create_tables, open_sampler
from tidemill.types import WindowSpec

_CHUNKS = 12


class Steps(FakeAgent):
    """Takes the `step` column of one-step items."""

    window = WindowSpec(history=0, steps=1)

    def decode(self, columns: Mapping[str, np.ndarray], index: np.ndarray) -> dict[str, np.ndarray]:
        """Return the last step of each item, from both columns that have it."""
        return {name: columns[name].reshape(len(columns[name]), -1)[index[:, -1], 0] for name in ("step", "frame")}


def fill(address: str) -> None:
    """Append chunks with an item at each step; every third chunk's LZ4 block is garbage."""
    with open_appender(address) as appender:
        for number in range(_CHUNKS):
            chunk = make_chunk(0, 0, number * CHUNK_LENGTH, CHUNK_LENGTH)
            if number % 3 == 1:
                chunk = dataclasses.replace(chunk, blocks=(b"\xff" * 50, *chunk.blocks[1:]))
            appender.append([chunk], [make_items(0, [(0, i, 1) for i in range(CHUNK_LENGTH)])], timeout_s=WAIT_S)
        assert appender.flush(WAIT_S)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
def test_garbage_leaves_the_table_while_training_goes_on(shards: int, mirrored: bool) -> None:
    """Every batch is whole and of sound items; soon the servers have no others."""
    table, counters = make_config(max_items=1000), Counters()
    with ExitStack() as stack:
        servers = [stack.enter_context(local_server()) for _ in range(shards)]
        cluster = ClusterSettings(replay=tuple(server.address for server in servers))
        directory = stack.enter_context(closing(ShardDirectory(cluster.replay))) if shards > 1 else None
        create_tables(cluster, directory, table)
        for server in servers:
            fill(server.address)
        mirror = TableMirror(SIGNATURE, MirrorSize(2000, CHUNK_LENGTH, hold=6), 2 * shards) if mirrored else None
        sampler = open_sampler(cluster, directory, table, 32, 2, mirror, stack)
        corrupt = CorruptItemFilter(sampler.delete_items, time.monotonic)
        decoder = Decoder(
            Steps(),
            SIGNATURE,
            TableSettings(),
            counters,
            DevicePrefetcher(resolve_device("cpu")),
            corrupt,
            splits=2,
            mirror=mirror,
        )
        batches = stack.enter_context(
            closing(BatchLoader(sampler, decoder.decode, counters, threads=2, prefetch_samples=1, clock=time.monotonic))
        )

        def is_clean() -> bool:
            batch = batches.take(WAIT_S)
            assert batch is not None
            step = batch.columns["step"]
            assert len(step) == 16
            assert step.tolist() == batch.columns["frame"].tolist()
            assert (step // CHUNK_LENGTH % 3 != 1).all()
            return all(server.replay.find("t").size == _CHUNKS * CHUNK_LENGTH * 2 // 3 for server in servers)

        wait_until(is_clean, "the garbage to leave")
        assert is_clean()
