"""Parameters as safetensors bytes, in full and half precision."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support.naming import naming
from tests.support.publishing import METADATA
from tidemill.errors import InvalidArgument, ResourceExhausted
from tidemill.params.blob import half, pack, unpack

_ARRAYS = hnp.arrays(
    dtype=st.sampled_from([np.float32, np.float16, np.int64, np.uint8, np.bool_]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@given(state=st.dictionaries(st.text(min_size=1, max_size=8), _ARRAYS, max_size=4))
def test_unpack_returns_what_was_packed(state: dict[str, np.ndarray]) -> None:
    """Names, dtypes, shapes and values survive, scalars and empty arrays included."""
    state.pop("__metadata__", None)
    unpacked = unpack(pack(state))
    assert unpacked.keys() == state.keys()
    for name, array in state.items():
        assert (unpacked[name].dtype, unpacked[name].shape) == (array.dtype, array.shape)
        assert unpacked[name].tobytes() == array.tobytes()


def test_transposed_view_is_packed_by_value() -> None:
    """Memory order does not matter."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert unpack(pack({"w": array.T}))["w"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_file_explains_itself() -> None:
    """Metadata is JSON in the header of the file, which is JSON after an 8-byte length."""
    blob = pack({"w": np.zeros(1, np.float32)}, METADATA)
    header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    assert json.loads(header["__metadata__"]["params"]) == dataclasses.asdict(METADATA)


def test_packing_is_repeatable() -> None:
    """The same parameters give the same bytes, so that a repeated publish is recognised."""
    state = {"b": np.ones(2, np.float32), "a": np.zeros(3, np.float32)}
    assert pack(state, METADATA) == pack(dict(reversed(state.items())), METADATA)


def test_size_limits_are_checked_first() -> None:
    """Too much to pack or unpack is refused with both sizes."""
    array = np.zeros(100, np.float32)
    with pytest.raises(ResourceExhausted, match=naming("400 399")):
        pack({"w": array}, max_bytes=399)
    with pytest.raises(ResourceExhausted, match=naming("400")):
        unpack(pack({"w": array}), max_bytes=400)


@pytest.mark.parametrize("blob", [b"", b"12345678", b"\xff" * 64, (2**62).to_bytes(8, "little") + b"{}"])
def test_bytes_of_something_else_are_invalid(blob: bytes) -> None:
    """A malformed file is an error in words, not a crash or a large allocation."""
    with pytest.raises(InvalidArgument, match=naming("safetensors")):
        unpack(blob)


def test_dtype_without_a_file_format_is_invalid() -> None:
    """Complex numbers are not parameters."""
    with pytest.raises(InvalidArgument, match=naming("safetensors")):
        pack({"w": np.array(["text"])})


def test_half_rounds_float32_only() -> None:
    """float32 becomes the nearest float16; other dtypes stay."""
    state: dict[str, np.ndarray] = {
        "w": np.array([1.0, 0.1, -65504.0], np.float32),
        "n": np.array([7], np.int64),
    }
    rounded = half(state)
    assert rounded is not None
    assert rounded["w"].dtype == np.float16
    assert rounded["w"].tolist() == [1.0, 0.0999755859375, -65504.0]  # 0.1 is 1638 / 16384 in float16
    assert rounded["n"].dtype == np.int64
    assert state["w"].dtype == np.float32


@pytest.mark.parametrize("value", [65520.0, -1e30, float("inf"), float("nan")])
def test_value_beyond_float16_has_no_half(value: float) -> None:
    """65520 is the first value that would round to infinity; broken numbers are not hidden."""
    assert half({"w": np.array([0.0, value], np.float32)}) is None


def test_value_that_rounds_down_to_the_largest_float16_fits() -> None:
    """65519.996 is still nearer to 65504 than to what would come next."""
    rounded = half({"w": np.array([65519.996], np.float32)})
    assert rounded is not None
    assert rounded["w"].tolist() == [65504.0]
