"""Steps of a program as columns: nests, names, dtypes, and columns whose length varies."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.naming import naming
from tidemill.errors import InvalidArgument
from tidemill.replay.writing.steps import StepReader, flatten, nest, ragged_columns, signature_like
from tidemill.types import Codec, ColumnSpec


class _Point(NamedTuple):
    x: float
    y: float


def test_nest_becomes_columns_and_a_nest_again() -> None:
    """Keys are joined by two underscores, places of tuples are numbers, fields of named tuples their names."""
    step = {"observation": {"image": 1, "speed": 2}, "action": (3, 4), "goal": _Point(5, 6)}
    columns = flatten(step)
    assert columns == {
        "observation__image": 1,
        "observation__speed": 2,
        "action__0": 3,
        "action__1": 4,
        "goal__x": 5,
        "goal__y": 6,
    }
    assert nest(columns) == {
        "observation": {"image": 1, "speed": 2},
        "action": {"0": 3, "1": 4},
        "goal": {"x": 5, "y": 6},
    }


def test_signature_is_that_of_an_example() -> None:
    """Python's floats are float32; columns from 256 bytes on, and those of varying length, are compressed."""
    example = {"image": np.zeros((16, 16), np.uint8), "action": 3, "reward": 0.5, "tokens": [1, 2]}
    signature = signature_like(example, max_lengths={"tokens": 7})
    assert signature == (
        ColumnSpec("image", "uint8", (16, 16), Codec.LZ4),
        ColumnSpec("action", "int64", ()),
        ColumnSpec("reward", "float32", ()),
        ColumnSpec("tokens", "int64", (7,), Codec.LZ4),
        ColumnSpec("tokens__len", "int32", ()),
    )
    assert ragged_columns(signature) == ("tokens",)
    batched = {"image": np.zeros((3, 16, 16), np.uint8), "tokens": [[1], [1, 2], []]}
    assert signature_like(batched, batched=True, max_lengths={"tokens": 7})[0].shape == (16, 16)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool"])
def test_scalar_of_numpy_keeps_its_dtype(dtype: str) -> None:
    """As an array does; `np.float64` is a Python float, too, and none the less eight bytes."""
    scalar = np.zeros(1, dtype)[0]
    expected = (ColumnSpec("reward", dtype, ()),)
    assert signature_like({"reward": scalar}) == signature_like({"reward": np.asarray(scalar)}) == expected
    assert signature_like({"reward": np.zeros(3, dtype)}, batched=True) == expected


@pytest.mark.parametrize("value", [0.5, [0.5, 1], [[0.0], [0.5]], [(0.5, 1.0)], [1e39]])
def test_floats_of_python_are_float32_also_in_lists(value: Any) -> None:  # noqa: ANN401 - nested lists
    """A list of them was float64, twice the bytes; a table that has it so still takes lists, exactly."""
    shape = np.shape(value)
    expected = (ColumnSpec("x", "float32", shape),)
    assert signature_like({"x": value}) == signature_like({"x": [value, value]}, batched=True) == expected
    stored = StepReader((ColumnSpec("x", "float64", shape),)).read({"x": value}, ())["x"]
    assert stored.dtype == np.float64
    assert np.array_equal(stored, value)


@pytest.mark.parametrize("value", [[np.float64(0.5)], [0.5, np.float64(1)], [np.zeros(2)], [[1, 2]], [True]])
def test_list_of_anything_else_has_the_dtype_of_its_array(value: list[Any]) -> None:
    """That of NumPy's scalars or arrays, also of one among others, and that of integers and bools."""
    assert signature_like({"x": value})[0].dtype == np.asarray(value).dtype.name


@pytest.mark.parametrize(
    "step, message",
    [
        (3, "step dict tuple"),
        ({"a": {}}, "a array"),
        ({"a__b": 1}, "'a__b' string __"),
        ({"a": {1: 1}}, "1 string"),
        ({"Reward": 1}, "column 'Reward'"),
        ({"a": "text"}, "column 'a' dtype"),
        ({"a": [[1], [1, 2]]}, "column 'a' array max_lengths"),
    ],
)
def test_example_that_is_no_step(step: Any, message: str) -> None:  # noqa: ANN401 - what a user may hand in
    """The error names the key and what is allowed."""
    with pytest.raises(InvalidArgument, match=naming(message)):
        signature_like(step)


def test_max_lengths_name_columns() -> None:
    """A name that is not a column of the step is refused with those that are; so is a scalar."""
    with pytest.raises(InvalidArgument, match=naming("max_lengths ['token'] ['tokens']")):
        signature_like({"tokens": [1]}, max_lengths={"token": 3})
    with pytest.raises(InvalidArgument, match=naming("column 'tokens' max_lengths scalar")):
        signature_like({"tokens": 1}, max_lengths={"tokens": 3})


_READER = StepReader(
    signature_like(
        {"image": np.zeros((2, 2), np.uint8), "reward": 0.5, "tokens": np.zeros(1, np.uint16)},
        max_lengths={"tokens": 3},
    )
)


def test_step_is_read_in_the_dtypes_of_its_columns() -> None:
    """Floats may lose precision, integers are checked for range; what varies in length is padded with zeros."""
    columns = _READER.read({"image": [[0, 1], [2, 255]], "reward": np.float64(0.1), "tokens": [7, 65535]}, ())
    assert columns["image"].dtype == np.uint8
    assert columns["reward"] == np.float32(0.1)
    assert columns["tokens"].tolist() == [7, 65535, 0]
    assert columns["tokens__len"] == 2
    two = _READER.read({"image": np.zeros((2, 2, 2), np.uint8), "reward": [1, 2], "tokens": [[], [1, 2, 3]]}, (2,))
    assert two["tokens"].tolist() == [[0, 0, 0], [1, 2, 3]]
    assert two["tokens__len"].tolist() == [0, 3]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"more": 1}, "['more']"),
        ({"tokens__len": 1}, "'tokens__len' string"),
        ({"image": np.zeros((2, 3), np.uint8)}, "column 'image' (2, 3) (2, 2)"),
        ({"image": np.full((2, 2), 256)}, "column 'image' 256 256 0 255 uint8"),
        ({"image": np.full((2, 2), -1)}, "column 'image' -1 -1"),
        ({"image": np.zeros((2, 2))}, "column 'image' float64 uint8"),
        ({"tokens": [1, 2, 3, 4]}, "column 'tokens' (4,) ('0 .. 3',)"),
        ({"tokens": [[1]]}, "column 'tokens' (1, 1)"),
        ({"tokens": [[1], [1, 2]]}, "column 'tokens' array"),
    ],
)
def test_step_that_does_not_fit(change: dict[str, Any], message: str) -> None:
    """The error names the column, its value and what is allowed."""
    step = {"image": np.zeros((2, 2), np.uint8), "reward": 0.5, "tokens": [1]}
    with pytest.raises(InvalidArgument, match=naming(message)):
        _READER.read(step | change, ())


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize(
    "dtype, given, most",
    [
        ("float32", np.int64, 2**24),
        ("float32", np.int32, 2**24),
        ("float32", np.uint64, 2**24),
        ("float16", np.int16, 2**11),
        ("float64", np.int64, 2**53),
    ],
)
def test_whole_number_is_not_rounded(dtype: str, given: type[np.integer[Any]], most: int, as_array: bool) -> None:
    """It was stored as its neighbour; one that the column holds is taken, however large."""
    reader = StepReader(signature_like({"x": np.zeros(2 if as_array else (), dtype)}))

    def read(value: int) -> float:
        step = {"x": np.array([1, value], given) if as_array else given(value)}
        return float(np.ravel(reader.read(step, ())["x"])[-1])

    assert read(most) == most
    assert read(most + 2) == most + 2
    with pytest.raises(InvalidArgument, match=naming("column 'x'", most + 1, dtype)):
        read(most + 1)
    top = int(np.iinfo(given).max)
    with pytest.raises(InvalidArgument, match=naming("column 'x'", top)):
        read(top)


@pytest.mark.parametrize("as_array", [False, True])
def test_fraction_is_rounded_and_does_not_overflow(as_array: bool) -> None:
    """A number stored as infinity is refused; infinity itself is taken, and so is anything but a number."""
    reader = StepReader(signature_like({"x": np.zeros(2 if as_array else (), np.float32)}))
    for value in (0.1, np.inf, -np.inf, np.nan, 3.4e38, True):
        step = {"x": [0.0, value] if as_array else value}
        found = np.ravel(reader.read(step, ())["x"])[-1]
        assert np.array_equal(found, np.float32(value), equal_nan=True)
    for value in (1e39, -1e300):
        with pytest.raises(InvalidArgument, match=r"'x' .*1e\+3.* -3\.4.*e\+38 \.\. 3\.4"):
            reader.read({"x": [0.0, value] if as_array else value}, ())


@pytest.mark.parametrize(
    "step, said",
    [
        ({"reward": 0.5}, "lacks columns ['image', 'tokens']"),
        ({"image": 0, "reward": 0.5, "tokens": 0, "xyz": 0}, "has unknown columns ['xyz']"),
        (
            {"image": 0, "rewrad": 0.5, "tokens": 0},
            "lacks columns ['reward'] and has unknown columns ['rewrad']; did you mean 'reward'?",
        ),
    ],
)
def test_step_with_other_columns(step: dict[str, Any], said: str) -> None:
    """The error names those that are missing or unknown, if there are any, and what a misspelt one may mean."""
    with pytest.raises(InvalidArgument, match=f"^{re.escape(f'the step {said}')}$"):
        _READER.read(step, ())


def test_flat_step_has_columns_by_their_names() -> None:
    """As an actor makes them: arrays of the very dtypes and shapes are taken as they are, others are converted."""
    reader = StepReader(signature_like({"inner": {"number": 0}, "reward": 0.5}))
    exact = {"inner__number": np.zeros(2, np.int64), "reward": np.ones(2, np.float32)}
    assert reader.read(exact, (2,)) is exact
    read = reader.read({"inner__number": [1, 2], "reward": np.ones(2)}, (2,))
    assert [column.dtype.name for column in read.values()] == ["int64", "float32"]
    assert reader.read({"inner": {"number": 3}, "reward": 1.0}, ())["inner__number"] == 3
    with pytest.raises(InvalidArgument, match=naming("column 'reward' (3,) (2,)")):
        reader.read(exact | {"reward": np.ones(3, np.float32)}, (2,))
