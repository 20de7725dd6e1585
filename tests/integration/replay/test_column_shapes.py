"""Columns of many dimensions and of varying length, from a writer to ready batches."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_service import LocalServer
from tests.support.waiting import WAIT_S
from tidemill.errors import InvalidArgument
from tidemill.replay import (
    Codec,
    ColumnSpec,
    HostRows,
    ItemWindow,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    export_table,
    import_table,
    signature_like,
)


def test_lengths_that_vary(server: LocalServer) -> None:
    """Come back as they were written, one array for each step."""
    signature = signature_like({"tokens": [1]}, max_lengths={"tokens": 50})
    table = TableConfig("t", signature, SelectorConfig(SelectorKind.FIFO), 100, 1, max_times_sampled=1)
    with ReplayWriter(server.address, table, windows=ItemWindow(1), chunk_length=1) as writer:
        for length in (3, 0, 50):
            writer.append({"tokens": np.arange(length)})
    with ReplayDataset(server.address, table, 3, timeout_s=WAIT_S, prefetch=1) as dataset:
        batch = next(dataset)
    assert [[part.tolist() for part in item] for item in batch.ragged("tokens")] == [
        [[0, 1, 2]],
        [[]],
        [list(range(50))],
    ]
    with pytest.raises(InvalidArgument, match=naming("column 'x' ['tokens']")):
        batch.ragged("x")


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.LZ4])
def test_column_of_eight_dimensions_comes_back(server: LocalServer, tmp_path: Path, codec: Codec) -> None:
    """In a batch, with a mirror, of varying length, and by way of files; nine are refused by name."""
    shape = (2, 1, 3, 1, 2, 2, 1, 2)
    table = TableConfig(
        "deep", (ColumnSpec("x", "int16", shape, codec),), SelectorConfig(SelectorKind.FIFO), 100, max_item_steps=2
    )
    values = np.arange(6 * math.prod(shape), dtype=np.int16).reshape(6, *shape)
    with ReplayWriter(server.address, table, windows=ItemWindow(2), chunk_length=4) as writer:
        for value in values:
            writer.append({"x": value})
    export_table(server.address, "deep", tmp_path / "deep")
    import_table(server.address, tmp_path / "deep", table="copy")
    for name, keep in (("deep", None), ("deep", HostRows(1)), ("copy", None)):
        renamed = replace(table, name=name)
        with ReplayDataset(server.address, renamed, 1, timeout_s=WAIT_S, keep=keep) as dataset:
            batch = next(dataset)
            assert batch["x"].shape == (1, 2, *shape)
            np.testing.assert_array_equal(batch["x"][0], values[:2])
    with pytest.raises(InvalidArgument, match=naming("column 'x' 8")):
        TableConfig("deeper", (ColumnSpec("x", "int8", (1,) * 9),), SelectorConfig(SelectorKind.FIFO), 100, 1)
    with pytest.raises(InvalidArgument, match=naming("8")):
        signature_like({"x": np.zeros((1,) * 9)})


def test_column_of_varying_length_has_eight_dimensions(server: LocalServer) -> None:
    """The first of them varies."""
    shape = (1, 2, 1, 1, 2, 1, 1)
    signature = signature_like({"x": np.zeros((3, *shape), np.float32)}, max_lengths={"x": 5})
    table = TableConfig("ragged", signature, SelectorConfig(SelectorKind.FIFO), 100, max_item_steps=1)
    with ReplayWriter(server.address, table, windows=ItemWindow(1)) as writer:
        writer.append({"x": np.full((4, *shape), 7, np.float32)})
    with ReplayDataset(server.address, table, 1, timeout_s=WAIT_S) as dataset:
        ((found,),) = next(dataset).ragged("x")
    np.testing.assert_array_equal(found, np.full((4, *shape), 7, np.float32))
