"""Garbage that a replay service takes, since it never decompresses, and what a dataset makes of it."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack

import numpy as np
import pytest

from tests.support.replay_service import CHUNK_LENGTH, local_server, open_appender
from tests.support.replay_streams import make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.dataset import Decoding, ReplayDataset
from tidemill.replay.sampling.mirror_memory import HostRows
from tidemill.replay.sampling.mixture import TableAt
from tidemill.replay.sampling.sample_decoder import ItemRows
from tidemill.replay.table_config import TableConfig, shard_config

_CHUNKS = 12


def steps(rows: ItemRows) -> dict[str, np.ndarray]:
    """Return the last step of each item, from both columns that have it."""
    return {
        name: rows.columns[name].reshape(len(rows.columns[name]), -1)[rows.index[:, -1], 0]
        for name in ("step", "frame")
    }


def fill(address: str) -> None:
    """Append chunks with an item at each step; every third chunk's LZ4 block is garbage."""
    with open_appender(address) as appender:
        for number in range(_CHUNKS):
            chunk = make_chunk(0, 0, number * CHUNK_LENGTH, CHUNK_LENGTH)
            if number % 3 == 1:
                chunk = dataclasses.replace(chunk, blocks=(b"\xff" * 50, *chunk.blocks[1:]))
            appender.append([chunk], [make_items(0, [(0, i, 1) for i in range(CHUNK_LENGTH)])], timeout_s=WAIT_S)
        assert appender.flush(WAIT_S)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
def test_garbage_leaves_the_table_while_training_goes_on(shards: int, mirrored: bool, threads: int) -> None:
    """Every batch is whole and of sound items; soon the servers have no others."""
    table = make_config(max_items=1000)
    with ExitStack() as stack:
        servers = [stack.enter_context(local_server()) for _ in range(shards)]
        addresses = [server.address for server in servers]
        for server in servers:
            with ReplayClient(server.address) as client:
                client.create_table(shard_config(table, shards))
            fill(server.address)
        batches = stack.enter_context(
            ReplayDataset(
                addresses,
                table,
                16,
                batches_per_sample=2,
                decoding=Decoding(threads=threads),
                transform=steps,
                keep=HostRows(8, CHUNK_LENGTH) if mirrored else None,
                timeout_s=WAIT_S,
                create=True,
            )
        )

        def is_clean() -> bool:
            batch = next(batches)
            step = batch.columns["step"]
            assert len(step) == 16
            assert step.tolist() == batch.columns["frame"].tolist()
            assert (step // CHUNK_LENGTH % 3 != 1).all()
            return all(server.replay.find("t").size == _CHUNKS * CHUNK_LENGTH * 2 // 3 for server in servers)

        wait_until(is_clean, "the garbage to leave")
        assert is_clean()
        assert batches.corrupt_items > 0


def test_garbage_of_one_of_several_tables_leaves_that_table() -> None:
    """Batches keep their shares, and the other server's items stay."""
    table = make_config(max_items=1000)
    with local_server() as own, local_server() as other:
        with ReplayClient(own.address) as client, open_appender(own.address) as appender:
            client.create_table(table)
            for number in range(_CHUNKS):
                items = make_items(0, [(0, i, 1) for i in range(CHUNK_LENGTH)])
                appender.append([make_chunk(0, 0, number * CHUNK_LENGTH, CHUNK_LENGTH)], [items], timeout_s=WAIT_S)
            assert appender.flush(WAIT_S)
        with ReplayClient(other.address) as client:
            client.create_table(table)
        fill(other.address)
        fractions: dict[TableConfig | TableAt, float] = {table: 0.25, TableAt("t", other.address): 0.75}
        with ReplayDataset(own.address, fractions, 16, timeout_s=WAIT_S) as dataset:

            def is_clean() -> bool:
                batch = next(dataset)
                assert batch.tables.tolist() == [0] * 4 + [1] * 12
                step = batch["step"][:, -1]
                assert (step[batch.tables == 1] // CHUNK_LENGTH % 3 != 1).all()
                return other.replay.find("t").size == _CHUNKS * CHUNK_LENGTH * 2 // 3

            wait_until(is_clean, "the other table without garbage")
            assert dataset.corrupt_items > 0
        assert own.replay.find("t").size == _CHUNKS * CHUNK_LENGTH
