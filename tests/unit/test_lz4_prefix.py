"""Blocks decompressed in place: both ways do the same, and nothing is written beyond what was asked for."""

from __future__ import annotations

import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.replay.codec import Decompress, decompress_prefix, through_binding

_GUARD = 64


def _into(function: Decompress, block: bytes, wanted: int, raw: int) -> tuple[int, bytes, bytes]:
    """Return the count, what was filled, and the bytes after it."""
    source = np.frombuffer(block, dtype=np.uint8)
    target = np.full(wanted + _GUARD, 0xAB, dtype=np.uint8)
    count = function(source.ctypes.data, len(block), target.ctypes.data, wanted, raw)
    return count, target[:wanted].tobytes(), target[wanted:].tobytes()


def test_the_library_itself_is_called() -> None:
    """The pinned binding carries LZ4's own functions, so that the slower way is not taken silently."""
    assert decompress_prefix is not through_binding


@pytest.mark.parametrize("function", [decompress_prefix, through_binding])
@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 3000), share=st.floats(0, 1), levels=st.integers(1, 256))
def test_prefix_is_the_beginning_and_nothing_more(
    function: Decompress, seed: int, size: int, share: float, levels: int
) -> None:
    """Any prefix of any block comes out exactly, and no byte after it changes."""
    raw = np.random.default_rng(seed).integers(0, levels, size, dtype=np.uint8).tobytes()
    wanted = round(share * size)
    count, filled, after = _into(function, lz4.block.compress(raw, store_size=False), wanted, size)
    assert (count, filled) == (wanted, raw[:wanted])
    assert after == b"\xab" * _GUARD


@pytest.mark.parametrize("function", [decompress_prefix, through_binding])
@settings(deadline=None, max_examples=200)
@given(block=st.binary(max_size=80), wanted=st.integers(0, 300), more=st.integers(0, 100))
def test_noise_writes_nothing_beyond_what_was_asked_for(
    function: Decompress, block: bytes, wanted: int, more: int
) -> None:
    """Bytes that are not a block give a number or an error, and the memory after the target stays as it was."""
    count, _, after = _into(function, block, wanted, wanted + more)
    assert count <= wanted
    assert after == b"\xab" * _GUARD
