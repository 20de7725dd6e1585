"""Observations of several named parts: a column each where they are stored, one row of bytes on the way to a network.

A Dict of a camera and a speed is stored as `observation__camera` and `observation__speed`. Whoever stacks, joins or
gathers observations sees one array of bytes, [..., bytes of all parts], the parts in the order of `EnvSpec`: those of
float32 first, in one piece, then images.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.errors import InvalidArgument
from tidemill.types import OBSERVATION, ObservationPart, part_column


def in_order(parts: Sequence[ObservationPart]) -> tuple[ObservationPart, ...]:
    """Return parts as they lie side by side: float32 before images, each by name."""
    return tuple(sorted(parts, key=lambda part: (part.is_image, part.name)))


def part_name(key: object) -> str:
    """Return the name that a key of a mapping of observations, or a position in a tuple, has in the name of a part."""
    return re.sub(r"[^a-z0-9]+", "_", str(key).lower())


def leaves(observation: Any, path: str = "", whole: Collection[str] = ()) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - nested as the user likes
    """Yield the name and the value of each leaf of a nest of mappings and tuples; a name joins its keys by `__`.

    A part that `whole` names is a leaf, whatever it holds: a batch of texts is a tuple.
    """
    if path in whole:
        yield path, observation
        return
    if isinstance(observation, Mapping):
        items = list(observation.items())
    elif isinstance(observation, tuple):
        items = list(enumerate(observation))
    else:
        yield path, observation
        return
    for key, value in items:
        name = part_name(key)
        yield from leaves(value, f"{path}__{name}" if path else name, whole)


_EXACT = 2**24  # float32 has every whole number up to here


def stored(value: Any, dtype: Any, name: str = "observation") -> Array:  # noqa: ANN401 - what NumPy takes
    """Return an array in the dtype of stored observations: fractions may be rounded, but nothing else changes.

    Args:
        value: An observation, or several.
        dtype: `uint8` or `float32`.
        name: What it is called in messages.

    Raises:
        InvalidArgument: Its numbers are of another kind than the dtype, or it has whole numbers that the dtype lacks.
    """
    array, wanted = np.asarray(value), np.dtype(dtype)
    if array.dtype == wanted:
        return array
    kind = array.dtype.kind
    if kind == "b" or (kind == wanted.kind == "f"):
        with np.errstate(over="ignore"):  # what is too large becomes infinite, which the check of finite numbers names
            return array.astype(wanted)
    low, high = (0, 255) if wanted.kind == "u" else (-_EXACT, _EXACT)
    fits = kind in "iu" and (not array.size or (low <= array.min() and array.max() <= high))
    if not fits:
        found = f" from {array.min()} to {array.max()}" if kind in "iuf" and array.size else ""
        remedy = "scale them, or give the space another dtype" if wanted.kind == "u" else "subtract an offset, or scale"
        raise InvalidArgument(
            f"{name} of {array.dtype} numbers{found}, which is stored as {wanted}, allowed: whole numbers from {low} "
            f"to {high}{'' if wanted.kind == 'u' else ', and floats'}: {remedy}"
        )
    return array.astype(wanted)


def packed_dtype(parts: Sequence[ObservationPart]) -> np.dtype[np.void]:
    """Return the structure of one packed observation, without padding."""
    return np.dtype([(part.name, part.dtype, part.shape) for part in parts])


def pack(parts: Sequence[ObservationPart], values: Mapping[str, Any], batch: tuple[int, ...] = ()) -> Array:
    """Return observations as bytes, uint8 [*batch, bytes].

    Args:
        parts: In their order.
        values: Of each part by name, [*batch, *part.shape].
        batch: Axes before those of the parts.

    Raises:
        InvalidArgument: A part is missing, unknown or has another shape.
    """
    if values.keys() != (names := {part.name for part in parts}):
        raise InvalidArgument(f"observation with the parts {sorted(values)}, allowed: {sorted(names)}")
    packed = np.empty(batch, packed_dtype(parts))
    for part in parts:
        value = np.asarray(values[part.name])
        if value.shape != (*batch, *part.shape):
            allowed = (*batch, *part.shape)
            raise InvalidArgument(f"part {part.name!r} of the observation has shape {value.shape}, allowed: {allowed}")
        packed[part.name] = stored(value, part.dtype, f"part {part.name!r} of the observation")
    return packed.reshape((*batch, 1)).view(np.uint8)


def unpack(parts: Sequence[ObservationPart], observation: Array) -> dict[str, Array]:
    """Return views of the parts of packed observations by name, each [..., *part.shape], of uint8 [..., bytes]."""
    packed = np.ascontiguousarray(observation).view(packed_dtype(parts))[..., 0]
    return {part.name: packed[part.name] for part in parts}


def observation_columns(parts: Sequence[ObservationPart], observation: Array) -> dict[str, Array]:
    """Return the columns that observations [N, ...] are stored as: one, or one of each part."""
    if not parts:
        return {OBSERVATION: observation}
    return {part_column(name): value for name, value in unpack(parts, observation).items()}


def gather_observations(columns: Mapping[str, Array], rows: NDArray[np.int64]) -> Array:
    """Return the observations at some rows of streams, [*rows.shape, ...], parts packed as a policy got them.

    Args:
        columns: Of which those of the observation are taken, each [R, ...].
        rows: Any shape.
    """
    if OBSERVATION in columns:
        return columns[OBSERVATION].take(rows, axis=0)  # unlike indexing, it copies whole rows at a time
    prefix = part_column("")
    parts = in_order(
        [
            ObservationPart(name.removeprefix(prefix), str(column.dtype), column.shape[1:])
            for name, column in columns.items()
            if name.startswith(prefix)
        ]
    )
    values = {part.name: columns[part_column(part.name)].take(rows, axis=0) for part in parts}
    return pack(parts, values, rows.shape)


def packed(parts: Sequence[ObservationPart], observation: Any) -> Array:  # noqa: ANN401 - nested as the user likes
    """Return the bytes of one observation, [bytes], or of N, [N, bytes], given as such or as a nest of parts.

    Raises:
        InvalidArgument: A part is missing, unknown or has another shape.
    """
    if not isinstance(observation, Mapping | tuple):
        return np.asarray(observation)
    values = {name: np.asarray(value) for name, value in leaves(observation)}
    known = {part.name for part in parts}
    values = {name: value for name, value in values.items() if name in known or value.dtype.kind != "U"}  # no text
    first = parts[0]
    extra = values[first.name].ndim - len(first.shape) if first.name in values else 0
    return pack(parts, values, values[first.name].shape[:extra] if extra > 0 else ())
