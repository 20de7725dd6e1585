"""Observations of several named parts: a column each where they are stored, one row of bytes on the way to a network.

A Dict of a camera and a speed is stored as `observation__camera` and `observation__speed`. Whoever stacks, joins or
gathers observations sees one array of bytes, [..., bytes of all parts], the parts in the order of `EnvSpec`: those of
float32 first, in one piece, then images.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.errors import InvalidArgument
from tidemill.types import OBSERVATION, ObservationPart, PartSpace, part_column


def in_order(parts: Sequence[ObservationPart]) -> tuple[ObservationPart, ...]:
    """Return parts as they lie side by side: float32 before images, each by name."""
    return tuple(sorted(parts, key=lambda part: (part.is_image, part.name)))


def part_name(key: object) -> str:
    """Return the name that a key of a mapping of observations, or a position in a tuple, has in the name of a part."""
    return re.sub(r"[^a-z0-9]+", "_", str(key).lower())


def tuple_paths(names: Iterable[str]) -> set[str]:
    """Return where a nest with leaves of these names has its tuples: whatever holds a 0, a 1 and so on."""
    return {name[: found.start()] for name in names for found in re.finditer(r"(?:^|__)(?=\d)", name)}


def leaves(
    observation: Any,  # noqa: ANN401 - nested as the user likes
    path: str = "",
    whole: Collection[str] = (),
    tuples: Collection[str] = (),
) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each leaf of a nest of mappings and tuples; a name joins its keys by `__`.

    A part that `whole` names is a leaf, whatever it holds: a batch of texts is a tuple. A list or an array at one of
    `tuples` is taken for a tuple, as gymnasium takes it.
    """
    if path in whole:
        yield path, observation
        return
    if isinstance(observation, Mapping):
        items = list(observation.items())
    elif isinstance(observation, tuple) or (path in tuples and isinstance(observation, list | np.ndarray)):
        items = list(enumerate(observation))
    else:
        yield path, observation
        return
    for key, value in items:
        name = part_name(key)
        yield from leaves(value, f"{path}__{name}" if path else name, whole, tuples)


def without_mask(observation: Mapping[str, Any], key: str) -> tuple[Any, Any]:
    """Return the rest of a Dict observation, a single value by itself, and the mask at one of its keys, or None."""
    rest = {each: value for each, value in observation.items() if each != key}
    return next(iter(rest.values())) if len(rest) == 1 else rest, observation.get(key)


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
    if kind not in "biufc":
        raise InvalidArgument(f"{name} of dtype {array.dtype}, which is stored as {wanted}, allowed: numbers")
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


def packed(
    parts: Sequence[ObservationPart],
    observation: Any,  # noqa: ANN401 - nested as the user likes
    spaces: Sequence[PartSpace] = (),
) -> Array:
    """Return the bytes of one observation, [bytes], or of N, [N, bytes], given as such or as a nest of parts.

    Args:
        parts: In their order.
        observation: Bytes, or a nest of parts, each in its stored shape or as its space says.
        spaces: What the environment returns for its parts, where it is known.

    Raises:
        InvalidArgument: A part is missing, unknown or has another shape, or it has an option that its space lacks.
    """
    known = {part.name for part in parts}
    tuples = tuple_paths(known)
    is_tuple = isinstance(observation, list) and "" in tuples and not _holds_bytes(parts, observation)
    if not isinstance(observation, Mapping | tuple) and not is_tuple:
        return np.asarray(observation)
    values = {name: np.asarray(value) for name, value in leaves(observation, tuples=tuples)}
    values = {name: value for name, value in values.items() if name in known or value.dtype.kind != "U"}  # no text
    if values.keys() != known:
        return pack(parts, values)  # which says so
    own = {space.name: space for space in spaces}
    wrong: InvalidArgument | None = None
    for batch in _batches(parts, values, own):
        try:
            in_form = {part.name: _in_form(part, values[part.name], own.get(part.name), batch) for part in parts}
            rows = pack(parts, in_form, batch)
            check_options(spaces, unpack(parts, rows))
        except InvalidArgument as error:
            wrong = wrong or error
        else:
            return rows
    assert wrong is not None
    raise wrong


def _holds_bytes(parts: Sequence[ObservationPart], observation: Sequence[Any]) -> bool:
    """True for one or more packed observations; False for the parts of one, which may have several shapes."""
    try:
        return np.shape(observation)[-1:] == (packed_dtype(parts).itemsize,)
    except ValueError:
        return False


def _batches(
    parts: Sequence[ObservationPart], values: Mapping[str, Array], own: Mapping[str, PartSpace]
) -> list[tuple[int, ...]]:
    """Return the axes that may stand before those of the parts, (N,) or (), likely ones first.

    A single part may leave it open: three numbers are one choice of three options, or three choices.
    """
    stored_axes: dict[str, tuple[int, ...]] = {}
    fits: dict[str, set[tuple[int, ...]]] = {}
    for part in parts:
        shape = values[part.name].shape
        forms = [part.shape, _own_shape(part, own.get(part.name))]
        axes = [shape[: len(shape) - len(form)] for form in forms if shape[max(len(shape) - len(form), 0) :] == form]
        fits[part.name] = {each for each in axes if len(each) < 2}
        if shape[max(len(shape) - len(part.shape), 0) :] == part.shape:
            stored_axes[part.name] = shape[: len(shape) - len(part.shape)]
    if common := set.intersection(*fits.values()):
        return sorted(common, key=lambda axes: any(stored_axes.get(part.name) != axes for part in parts))
    usual = Counter([axes for each in fits.values() for axes in each] or stored_axes.values()).most_common(1)
    return [axes for axes, _ in usual] or [()]  # of most parts, so that the message names one that differs


def _own_shape(part: ObservationPart, space: PartSpace | None) -> tuple[int, ...]:
    """Return the second shape that a part is taken in: that of its space; a number that is none of an option, alone."""
    if part.shape == (1,) and not (space is not None and space.options):
        return ()
    return part.shape if space is None else space.shape


def _in_form(part: ObservationPart, value: Array, space: PartSpace | None, batch: tuple[int, ...]) -> Array:
    """Return a part's value in its stored shape, [*batch, *part.shape]."""
    own = _own_shape(part, space)
    if value.shape == (*batch, *part.shape):
        return value
    if value.shape != (*batch, *own):
        allowed = f"{(*batch, *part.shape)}" + (f" or {(*batch, *own)}" if own != part.shape else "")
        remedy = "; give a Discrete part one-hot" if space is None and not part.is_image else ""
        raise InvalidArgument(
            f"part {part.name!r} of the observation has shape {value.shape}, allowed: {allowed}{remedy}"
        )
    if space is None or not space.options:
        return value.reshape((*batch, *part.shape))
    if value.dtype.kind not in "biu":
        raise InvalidArgument(f"part {part.name!r} of the observation of {value.dtype} numbers, allowed: whole numbers")
    options = np.array(space.options)
    places = value.astype(np.int64).reshape((*batch, len(options))) - np.array(space.starts)
    if not ((places >= 0) & (places < options)).all():
        found = f"part {part.name!r} of the observation with the value {value}"
        raise InvalidArgument(f"{found}, allowed: {_ranges(space)}")
    one_hot = np.zeros((*batch, *part.shape), np.float32)
    np.put_along_axis(one_hot, places + np.cumsum(options) - options, 1, axis=-1)
    return one_hot


def check_options(spaces: Sequence[PartSpace], values: Mapping[str, Array]) -> None:
    """Check stored parts, each [..., *part.shape], for options that their spaces have.

    Raises:
        InvalidArgument: A choice is not one-hot, or a number of a binary part is neither 0 nor 1.
    """
    for space in spaces:
        if not (space.is_binary or space.options):
            continue
        value = values[space.name]
        is_known = bool(((value == 0) | (value == 1)).all())
        if is_known and space.options:
            options = np.array(space.options, np.int64)
            starts: NDArray[np.int64] = np.cumsum(options) - options
            is_known = bool((np.add.reduceat(value, starts, axis=-1) == 1).all())
        if not is_known:
            allowed = f"{_ranges(space)}, one-hot" if space.options else "0 and 1"
            what = f"part {space.name!r} of the observation" if space.name else "observation"
            raise InvalidArgument(f"{what} with the value {value.tolist()}, allowed: {allowed}")


def _ranges(space: PartSpace) -> str:
    ranges = (f"{first} .. {first + count - 1}" for first, count in zip(space.starts, space.options, strict=True))
    return ", ".join(ranges)
