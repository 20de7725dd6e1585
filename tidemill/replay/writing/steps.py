"""Steps as a program has them, nested and of any length, and the named columns of fixed size that the wire carries.

`{"observation": {"image": a, "speed": b}, "action": (c, d)}` becomes the columns `observation__image`,
`observation__speed`, `action__0` and `action__1`. A column whose length varies from step to step is padded with zeros
up to a maximum and has a second column, `tokens__len`, that says how much of it counts (ADR 0036).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tidemill.arrays import Array
from tidemill.errors import InvalidArgument
from tidemill.replay.table_config import check_signature
from tidemill.settings.check import nearest
from tidemill.types import DTYPES, Codec, ColumnSpec, Signature

SEPARATOR = "__"
LENGTH = "len"
"""Last part of the name of a column that holds the lengths of another."""

_LEAVES = (np.ndarray, np.generic, float, int, list)  # what most leaves are; asking for a Mapping takes longer
_COMPRESSED_BYTES = 256  # steps of a column from here on are worth LZ4's time


def flatten(step: Any, name: str = "") -> dict[str, Any]:  # noqa: ANN401 - a nest of what has no common type
    """Return the leaves of a nest of mappings and tuples by column name; a list is an array.

    Raises:
        InvalidArgument: A key is not a string, or has `__` in it; or there is nothing in a part of the nest.
    """
    if isinstance(step, Mapping):
        parts = list(step.items())
    elif isinstance(step, tuple):
        fields = getattr(step, "_fields", None) or range(len(step))
        parts = [(str(key), value) for key, value in zip(fields, step, strict=True)]
    elif name:
        return {name: step}
    else:
        raise InvalidArgument(f"a step is a {type(step).__name__}, must be a dict or tuple of arrays")
    if not parts:
        raise InvalidArgument(f"{name or 'the step'} is empty, must hold at least one array")
    leaves: dict[str, Any] = {}
    for key, value in parts:
        if not isinstance(key, str) or SEPARATOR in key:
            raise InvalidArgument(f"key {key!r} of {name or 'the step'} must be a string without `{SEPARATOR}`")
        path = f"{name}{SEPARATOR}{key}" if name else key
        if isinstance(value, _LEAVES):
            leaves[path] = value
        else:
            leaves.update(flatten(value, path))
    return leaves


def nest(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns as the nest they were flattened from; what was a tuple has the keys "0", "1" and so on."""
    nested: dict[str, Any] = {}
    for name, value in columns.items():
        *path, last = name.split(SEPARATOR)
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def signature_like(
    step: Any,  # noqa: ANN401 - see `flatten`
    *,
    max_lengths: Mapping[str, int] | None = None,
    batched: bool = False,
) -> Signature:
    """Return the columns of steps like an example.

    Columns of 256 bytes per step and more are compressed with LZ4. Python's floats become float32, its integers int64,
    also in lists; arrays and scalars of NumPy keep their dtype.

    Args:
        step: One step, as it will be given to `ReplayWriter.append`: a nest of arrays and scalars.
        max_lengths: For columns whose first dimension varies from step to step, the most it has, by column name.
        batched: Whether the example holds one step of every environment, [N, ...].

    Raises:
        InvalidArgument: A name or a dtype is none that a column may have; `max_lengths` names no column.
    """
    leaves, longest = flatten(step), dict(max_lengths or {})
    columns: list[ColumnSpec] = []
    for name, value in leaves.items():
        ragged = name in longest
        array = _example(name, value, batched, ragged)
        shape = array.shape
        if ragged:
            if not array.ndim:
                raise InvalidArgument(f"column {name!r} is in max_lengths and is a scalar, must have a first dimension")
            shape = (longest.pop(name), *shape[1:])
        size = int(np.prod(shape, dtype=np.int64)) * array.dtype.itemsize
        codec = Codec.LZ4 if ragged or size >= _COMPRESSED_BYTES else Codec.RAW
        columns.append(ColumnSpec(name, array.dtype.name, tuple(int(n) for n in shape), codec))
        if ragged:
            columns.append(ColumnSpec(f"{name}{SEPARATOR}{LENGTH}", "int32", ()))
    if longest:
        raise InvalidArgument(f"max_lengths names {sorted(longest)}, the step has the columns {sorted(leaves)}")
    signature = tuple(columns)
    check_signature(signature)
    return signature


def ragged_columns(signature: Sequence[ColumnSpec]) -> tuple[str, ...]:
    """Return the names of the columns whose length varies."""
    names = [column.name for column in signature]
    return tuple(name for name in names if f"{name}{SEPARATOR}{LENGTH}" in names)


def _example(name: str, value: Any, batched: bool, ragged: bool) -> Array:  # noqa: ANN401
    """Return an array with the dtype that a column will have and the shape of one step."""
    if batched and ragged:  # one array for each environment, of different lengths
        value = value[0]
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidArgument(f"column {name!r} is not an array: {error}; name it in max_lengths?") from None
    if batched and not ragged:
        if not array.ndim:
            raise InvalidArgument(f"column {name!r} is a scalar, must have one entry for each environment")
        array = array[0]
    if array.dtype == np.float64 and _is_pythons(value):
        array = np.zeros(array.shape, np.float32)
    if array.dtype.name not in DTYPES:
        raise InvalidArgument(f"column {name!r} has dtype {array.dtype.name!r}, must be one of {sorted(DTYPES)}")
    return array


def _is_pythons(value: Any) -> bool:  # noqa: ANN401
    """True if a value is a number of Python, or a nest of lists of them."""
    if isinstance(value, list | tuple):
        return all(map(_is_pythons, value))
    return isinstance(value, int | float) and not isinstance(value, np.generic)  # np.float64 is a float, too


class StepReader:
    """Reads steps into arrays of a signature's dtypes and shapes, or says which column does not fit, and why."""

    def __init__(self, signature: Signature) -> None:
        """Prepare to read steps with these columns."""
        self._specs = {column.name: column for column in signature}
        self._dtypes = {column.name: np.dtype(column.dtype) for column in signature}
        self._ragged = ragged_columns(signature)
        self._lengths = {f"{name}{SEPARATOR}{LENGTH}" for name in self._ragged}
        self._given = self._specs.keys() - self._lengths
        self._kept: dict[tuple[str, np.dtype[Any]], tuple[float, float] | None] = {}
        self._exact: dict[tuple[int, ...], dict[str, tuple[np.dtype[Any], tuple[int, ...]]]] = {}

    def read(self, step: Any, batch: tuple[int, ...]) -> dict[str, Array]:  # noqa: ANN401 - see `flatten`
        """Return every column of a step, each [*batch, ...] in its dtype.

        Args:
            step: A nest of arrays and scalars.
            batch: `(N,)` if the step is that of N environments, `()` if it is of one.

        Raises:
            InvalidArgument: A column is missing or unknown, or has another shape, a dtype that does not convert, or a
                value out of range.
        """
        if self._is_exact(step, batch):
            exact: dict[str, Array] = step
            return exact
        is_flat = type(step) is dict and step.keys() == self._given
        leaves = step if is_flat else flatten(step)
        if leaves.keys() != self._given:
            missing, unknown = sorted(self._given - leaves.keys()), sorted(leaves.keys() - self._given)
            parts = ((f"lacks columns {missing}", missing), (f"has unknown columns {unknown}", unknown))
            hint = next(filter(None, (nearest(name, missing) for name in unknown)), "")
            raise InvalidArgument(f"the step {' and '.join(text for text, names in parts if names)}{hint}")
        columns: dict[str, Array] = {}
        for name, value in leaves.items():
            if name in self._ragged:
                columns[name], columns[f"{name}{SEPARATOR}{LENGTH}"] = self._pad(self._specs[name], value, batch)
            else:
                columns[name] = self._checked(self._specs[name], value, batch)
        return columns

    def _is_exact(self, step: Any, batch: tuple[int, ...]) -> bool:  # noqa: ANN401 - see `flatten`
        """True if a step is a flat dict of arrays with the table's exact dtypes and shapes, as an actor makes them."""
        if type(step) is not dict or self._ragged or len(step) != len(self._specs):
            return False
        wanted = self._exact.get(batch)
        if wanted is None:
            wanted = {name: (self._dtypes[name], (*batch, *spec.shape)) for name, spec in self._specs.items()}
            self._exact[batch] = wanted
        for name, value in step.items():
            if type(value) is not np.ndarray or wanted.get(name) != (value.dtype, value.shape):
                return False
        return True

    def _checked(self, spec: ColumnSpec, value: Any, batch: tuple[int, ...]) -> Array:  # noqa: ANN401
        array = _as_array(spec, value)
        if array.shape != (*batch, *spec.shape):
            raise InvalidArgument(f"column {spec.name!r} has shape {array.shape}, must have {(*batch, *spec.shape)}")
        return self._converted(spec, array)

    def _pad(self, spec: ColumnSpec, value: Any, batch: tuple[int, ...]) -> tuple[Array, Array]:  # noqa: ANN401
        """Return a column of varying length, padded with zeros, and its lengths."""
        entries = value if batch else [value]
        if batch and len(entries) != batch[0]:
            raise InvalidArgument(f"column {spec.name!r} has {len(entries)} entries, must have {batch[0]}")
        padded = np.zeros((len(entries), *spec.shape), spec.dtype)
        lengths = np.zeros(len(entries), np.int32)
        for i, entry in enumerate(entries):
            array = _as_array(spec, entry)
            if array.shape[1:] != spec.shape[1:] or not array.ndim or len(array) > spec.shape[0]:
                allowed = (f"0 .. {spec.shape[0]}", *spec.shape[1:])
                raise InvalidArgument(f"column {spec.name!r} has shape {array.shape}, must have {allowed}")
            lengths[i] = len(array)
            if len(array):
                padded[i, : len(array)] = self._converted(spec, array)
        return (padded, lengths) if batch else (padded[0], lengths[0])

    def _converted(self, spec: ColumnSpec, array: Array) -> Array:
        """Return an array in its column's dtype: fractions may be rounded, whole numbers not, and nothing overflows."""
        wanted = self._dtypes[spec.name]
        if array.dtype == wanted:
            return array
        key = (spec.name, array.dtype)
        if key not in self._kept:
            self._kept[key] = _kept_range(spec, array.dtype, wanted)
        if (kept := self._kept[key]) is None or not array.size:
            return array.astype(wanted)
        if not array.ndim:
            low = high = array.item()
        elif array.dtype.kind == "f":
            return _rounded(spec, array, wanted)
        else:
            low, high = int(array.min()), int(array.max())
        if kept[0] <= low and high <= kept[1]:
            return array.astype(wanted)
        if array.dtype.kind == "f":
            return _rounded(spec, array, wanted)
        if wanted.kind == "f":
            return _whole(spec, array, wanted)
        raise InvalidArgument(
            f"column {spec.name!r} has values {low} .. {high}, must be {kept[0]} .. {kept[1]} ({wanted})"
        )


def _kept_range(spec: ColumnSpec, given: np.dtype[Any], wanted: np.dtype[Any]) -> tuple[float, float] | None:
    """Return from where to where a column surely holds the numbers of a dtype; None if it holds them all.

    Raises:
        InvalidArgument: The dtype does not convert to that of the column.
    """
    if not (np.can_cast(given, wanted, "same_kind") or (given.kind in "iu" and wanted.kind in "iu")):
        raise InvalidArgument(f"column {spec.name!r} has dtype {given}, which does not convert to {wanted}")
    if given.kind == "b":
        return None
    kept: tuple[float, float]
    if given.kind == "f":
        all_of, kept = _finite(given), _finite(wanted)
    elif wanted.kind == "f":
        most = 2 ** (np.finfo(wanted).nmant + 1)
        all_of, kept = _whole_range(given), (-most, most)
    else:
        all_of, kept = _whole_range(given), _whole_range(wanted)
    return None if kept[0] <= all_of[0] and all_of[1] <= kept[1] else kept


def _finite(dtype: np.dtype[Any]) -> tuple[float, float]:
    most = float(np.finfo(dtype).max)
    return -most, most


def _whole_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _rounded(spec: ColumnSpec, array: Array, wanted: np.dtype[Any]) -> Array:
    """Return fractions in a smaller dtype. InvalidArgument: one is too large for it."""
    try:
        with np.errstate(over="raise"):
            return array.astype(wanted)
    except FloatingPointError:
        with np.errstate(over="ignore"):
            beyond = np.isinf(array.astype(wanted)) & ~np.isinf(array)
        low, high = _finite(wanted)
        raise InvalidArgument(
            f"column {spec.name!r} has {array[beyond].flat[0]:g}, must be {low:g} .. {high:g} ({wanted})"
        ) from None


def _whole(spec: ColumnSpec, array: Array, wanted: np.dtype[Any]) -> Array:
    """Return whole numbers as fractions. InvalidArgument: one would be rounded."""
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(wanted)
        changed = converted.astype(array.dtype) != array
    if changed.any():
        raise InvalidArgument(
            f"column {spec.name!r} has {array[changed].flat[0]}, which {wanted} cannot hold: give the column a dtype "
            f"for it, such as {array.dtype}, or append floats, which are rounded"
        )
    return converted


def _as_array(spec: ColumnSpec, value: Any) -> Array:  # noqa: ANN401
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InvalidArgument(f"column {spec.name!r} is not an array: {error}") from None
