"""Columns of chunks to blocks and back: round trips, covers, and corruption that is never served."""

from __future__ import annotations

from typing import Any

import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tests.support.encoded_batches import batch_of
from tests.support.naming import naming
from tidemill.errors import DataLoss, InvalidArgument
from tidemill.replay.codec import CorruptBlocks, decode, encode
from tidemill.types import Codec, ColumnSpec, Signature

SIGNATURE: Signature = (
    ColumnSpec("observation", "uint8", (4, 3), Codec.LZ4),
    ColumnSpec("reward", "float32", ()),
    ColumnSpec("flags", "bool", (2,), Codec.LZ4),
)


def columns_of(steps: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return random columns of `SIGNATURE`."""
    rng = np.random.default_rng(seed)
    return {
        "observation": rng.integers(0, 256, (steps, 4, 3), dtype=np.uint8),
        "reward": rng.normal(size=steps).astype(np.float32),
        "flags": rng.random((steps, 2)) < 0.5,
    }


DTYPES = ["bool", "uint8", "int16", "uint32", "int64", "uint64", "float16", "float32", "float64"]


@settings(deadline=None)
@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=5),
    codec=st.sampled_from(list(Codec)),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_any_column_comes_back_bit_for_bit(
    data: st.DataObject, dtype: str, shape: tuple[int, ...], codec: Codec, counts: list[int]
) -> None:
    """Whatever the dtype, shape and codec, an item over all rows of several chunks is what was encoded."""
    signature = (ColumnSpec("x", dtype, shape, codec),)
    rows = sum(counts)
    array = data.draw(hnp.arrays(dtype, (rows, *shape)))
    parts = np.split(array, np.cumsum(counts)[:-1])
    chunks = [encode(signature, {"x": part}) for part in parts]
    decoded = decode(signature, batch_of(signature, chunks, counts, [(0, rows)]), rows)
    got = decoded.columns["x"][decoded.index[0]]
    assert got.dtype == array.dtype
    assert got.tobytes() == array.tobytes()


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    picks=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8),
)
def test_items_see_their_rows_whatever_else_is_left_out(counts: list[int], picks: list[tuple[float, float]]) -> None:
    """Only rows that items cover need be decoded; each item finds its own, padded in front with its first."""
    rows = sum(counts)
    columns = columns_of(rows)
    chunks = [
        encode(SIGNATURE, {name: column[end - count : end] for name, column in columns.items()})
        for count, end in zip(counts, np.cumsum(counts).tolist(), strict=True)
    ]
    firsts = [int(a * (rows - 1)) for a, _ in picks]
    lengths = [1 + int(b * (rows - first - 1)) for first, (_, b) in zip(firsts, picks, strict=True)]
    items = list(zip(firsts, lengths, strict=True))
    decoded = decode(SIGNATURE, batch_of(SIGNATURE, chunks, counts, items), rows)
    assert decoded.index.shape == (len(items), rows)
    for i, (first, length) in enumerate(items):
        expected = np.maximum(np.arange(rows) - (rows - length), 0) + first
        for name, column in columns.items():
            np.testing.assert_array_equal(decoded.columns[name][decoded.index[i]], column[expected])
    assert len(decoded.columns["reward"]) <= rows


def test_encoding_takes_views_that_are_not_contiguous() -> None:
    """A slice across environments is encoded like its copy."""
    columns = {name: np.stack([column, column], axis=1)[:, 0] for name, column in columns_of(8).items()}
    assert encode(SIGNATURE, columns) == encode(SIGNATURE, {k: v.copy() for k, v in columns.items()})


def test_neighbouring_frames_cost_little() -> None:
    """Sixteen equal frames compress to hardly more than one: the whole chunk is one block."""
    signature = (ColumnSpec("observation", "uint8", (84, 84), Codec.LZ4),)
    frame = np.random.default_rng(0).integers(0, 256, (84, 84), dtype=np.uint8)
    (block,) = encode(signature, {"observation": np.repeat(frame[None], 16, axis=0)})
    assert len(block) < 1.1 * frame.size


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.pop("reward"), "column 'reward'"),
        (lambda c: c.update(reward=c["reward"].astype(np.float64)), "column 'reward' float64"),
        (lambda c: c.update(reward=c["reward"][:-1]), "column 'reward' float32 (7,) float32 (8,)"),
        (lambda c: c.update(flags=c["flags"][:, :1]), "column 'flags' bool (8, 1)"),
    ],
)
def test_wrong_column_is_refused_by_name(change: Any, message: str) -> None:  # noqa: ANN401 - a lambda
    """A column that is missing or of another dtype, shape or length is named with what it should be."""
    columns = columns_of(8)
    change(columns)
    with pytest.raises(InvalidArgument, match=naming(message)):
        encode(SIGNATURE, columns)


def with_block(chunk: tuple[bytes, ...], index: int, block: bytes) -> tuple[bytes, ...]:
    """Return a chunk without one of its blocks."""
    return (*chunk[:index], block, *chunk[index + 1 :])


@pytest.mark.parametrize(
    "index, block, message",
    [
        (0, b"", "column 'observation' corrupt 1"),
        (0, b"\xff" * 40, "observation"),
        (0, lz4.block.compress(bytes(7 * 12), store_size=False), "observation"),
        (0, lz4.block.compress(bytes(9 * 12), store_size=False), "observation"),
        (1, bytes(31), "column 'reward' 31 32"),
    ],
)
def test_corrupt_block_is_data_loss(index: int, block: bytes, message: str) -> None:
    """Blocks that do not decode, or to another size, are reported with their column and never served."""
    chunk = with_block(encode(SIGNATURE, columns_of(8)), index, block)
    with pytest.raises(DataLoss, match=naming(message)):
        decode(SIGNATURE, batch_of(SIGNATURE, [chunk], [8], [(0, 8)]), 8)


def test_every_corrupt_chunk_of_a_column_is_named() -> None:
    """Of four chunks the first and the last, but not the second, which no item needs; without them the rest decodes."""
    good = [encode(SIGNATURE, columns_of(8, seed)) for seed in range(4)]
    chunks = [with_block(chunk, 0, b"\xff" * 40) if i != 2 else chunk for i, chunk in enumerate(good)]
    batch = batch_of(SIGNATURE, chunks, [8] * 4, [(0, 8), (16, 8), (20, 8), (2, 3), (18, 2), (29, 3)])
    with pytest.raises(CorruptBlocks) as caught:
        decode(SIGNATURE, batch, 8)
    assert sorted(caught.value.chunks.tolist()) == [0, 3]
    needing = batch.needing(caught.value.chunks)
    assert needing.tolist() == [True, False, True, True, False, True]
    rest = decode(SIGNATURE, batch.take(np.flatnonzero(~needing)), 8)
    np.testing.assert_array_equal(rest.columns["observation"][rest.index[0]], columns_of(8, 2)["observation"])


@settings(deadline=None)
@given(noise=st.binary(min_size=1, max_size=60), at=st.integers(0, 100))
def test_noise_in_a_block_gives_data_loss_or_rows_but_nothing_else(noise: bytes, at: int) -> None:
    """Random corruption never crashes the process nor raises anything but DataLoss."""
    chunk = encode(SIGNATURE, columns_of(8))
    block = chunk[0][:at] + noise + chunk[0][at + len(noise) :]
    batch = batch_of(SIGNATURE, [with_block(chunk, 0, block)], [8], [(0, 8)])
    try:
        rows = decode(SIGNATURE, batch, 8).columns["observation"]
    except DataLoss:
        return
    assert rows.shape == (8, 4, 3)


def test_items_that_do_not_fit_their_rows_are_refused() -> None:
    """An item beyond the rows is the server's fault, one longer than asked for the caller's."""
    chunk = encode(SIGNATURE, columns_of(8))
    with pytest.raises(DataLoss, match=naming("9 8")):
        decode(SIGNATURE, batch_of(SIGNATURE, [chunk], [8], [(2, 7)]), 8)
    with pytest.raises(InvalidArgument, match=naming("item 8 5")):
        decode(SIGNATURE, batch_of(SIGNATURE, [chunk], [8], [(0, 8)]), 5)
    with pytest.raises(DataLoss, match=naming("2 3")):
        decode(SIGNATURE, batch_of(SIGNATURE[:2], [chunk], [8], [(0, 8)]), 8)


def test_empty_batch_decodes_to_nothing() -> None:
    """No items and no chunks give empty columns of the right shape."""
    decoded = decode(SIGNATURE, batch_of(SIGNATURE, [], [], []), 5)
    assert decoded.columns["observation"].shape == (0, 4, 3)
    assert decoded.index.shape == (0, 5)
