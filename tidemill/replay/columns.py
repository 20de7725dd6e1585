"""Batches as structs of arrays: a field says what it has one entry for, and all else follows from the fields.

What takes, joins, rolls, packs or unpacks batches names no column, so a new one is a line in `ItemColumns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray


class Per(Enum):
    """The unit that a column has one entry for."""

    ITEM = "item"
    CHUNK = "chunk"


class Column(NamedTuple):
    """A field with one entry per item or per chunk.

    Attributes:
        name: Of the field.
        dtype: Of the array, such as "u8"; empty for bytes, a tuple with an entry each or none at all, and for a dict of
            arrays.
        is_optional: Whether a batch may be without it.
        is_count: Whether it is sent only with `item_counts`.
    """

    name: str
    dtype: str
    is_optional: bool
    is_count: bool


def per_item(dtype: str = "", *, is_count: bool = False) -> dict[str, Any]:
    """Return the metadata of a field that has one entry per item."""
    return {"per": Per.ITEM, "dtype": dtype, "is_count": is_count}


def per_chunk(dtype: str) -> dict[str, Any]:
    """Return the metadata of a field that has one entry per chunk."""
    return {"per": Per.CHUNK, "dtype": dtype, "is_count": False}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ItemColumns:
    """Columns of every batch with an entry for each of its B items.

    Attributes:
        keys: Keys of the items, for priority updates, uint64 [B]; from several shards uint64 [B, 2], each key with the
            number of its shard.
        probabilities: Probability with which the sampler chose each item from its table, float64 [B].
        lengths: Steps of each item, int64 [B].
        payloads: Payload of each item; empty when none has one.
        ages: With `item_counts`, items inserted into the table after each item, until it was drawn, int64 [B].
        times_sampled: With `item_counts`, how often each item was sampled, all of its sample included, int64 [B].
        priorities: With `item_counts`, the priority of each item when it was drawn, float64 [B].
        table_s: How long each item had been in the table when it was drawn, by the server's clock, in seconds, float32
            [B]; NaN where that is not known, None from a server of an earlier release.
        traces: Trace context of each item, empty for one that is not traced; empty when none is (`tidemill.tracing`).
    """

    keys: NDArray[np.uint64] = field(metadata=per_item("u8"))
    probabilities: NDArray[np.float64] = field(metadata=per_item("f8"))
    lengths: NDArray[np.int64] = field(metadata=per_item("i8"))
    payloads: tuple[bytes, ...] = field(metadata=per_item())
    ages: NDArray[np.int64] | None = field(default=None, metadata=per_item("i8", is_count=True))
    times_sampled: NDArray[np.int64] | None = field(default=None, metadata=per_item("i8", is_count=True))
    priorities: NDArray[np.float64] | None = field(default=None, metadata=per_item("f8", is_count=True))
    table_s: NDArray[np.float32] | None = field(default=None, metadata=per_item("f4"))
    traces: tuple[bytes, ...] = field(default=(), metadata=per_item())

    def __repr__(self) -> str:
        """Return the fields with dtype and shape in place of values, without those that are missing or empty."""
        outlines = {column.name: _outline(getattr(self, column.name)) for column in fields(self)}
        return f"{type(self).__name__}({', '.join(f'{name}={told}' for name, told in outlines.items() if told)})"

    def take(self, places: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Self:
        """Return the items at some places, which may come twice, or those of a mask [B] or a slice."""
        return self.taken(Per.ITEM, places)

    def roll(self, shift: int) -> Self:
        """Return the items moved on by so many places, the last ones to the front (`numpy.roll`)."""
        return replace(self, **{name: _rolled(value, shift) for name, value in values_of(self, Per.ITEM).items()})

    def taken(self, per: Per, places: NDArray[np.int64] | NDArray[np.bool_] | slice, **others: Any) -> Self:  # noqa: ANN401
        """Return the entries at some places of the columns per item or per chunk, and other fields as given."""
        return replace(self, **{name: _taken(value, places) for name, value in values_of(self, per).items()}, **others)


def columns_of(kind: type[ItemColumns], per: Per) -> tuple[Column, ...]:
    """Return the columns of a class of batches, in the order of its fields."""
    named: Any = kind  # a class has a hash, whatever its instances have
    return _columns_of(named, per)


@cache
def _columns_of(kind: Any, per: Per) -> tuple[Column, ...]:  # noqa: ANN401 - see above
    return tuple(
        Column(column.name, column.metadata["dtype"], column.default is not MISSING, column.metadata["is_count"])
        for column in fields(kind)
        if column.metadata.get("per") is per
    )


def values_of(batch: ItemColumns, per: Per, kind: type[ItemColumns] | None = None) -> dict[str, Any]:
    """Return the values of a batch's columns by name; those alone that batches of another `kind` have, too."""
    return {column.name: getattr(batch, column.name) for column in columns_of(kind or type(batch), per)}


def split(values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return columns by name, cut into so many batches of the same number of items."""
    parts: list[dict[str, Any]] = _split(values, len(values["lengths"]) // count, count)
    return parts


def joined(batches: Sequence[ItemColumns], per: Per) -> dict[str, Any]:
    """Return the columns of batches of one class, one batch behind the other; a column that one lacks is None."""
    counts = [len(batch.lengths) for batch in batches]
    return {
        column.name: _joined([getattr(batch, column.name) for batch in batches], counts)
        for column in columns_of(type(batches[0]), per)
    }


def _outline(value: Any) -> str:  # noqa: ANN401 - what a field may be
    """Return an array's dtype and shape, or the type and length of what has no shape; empty for what is empty."""
    if value is None or (isinstance(value, Mapping | tuple) and not value):
        return ""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {_outline(part)}' for name, part in value.items())}}}"
    if hasattr(value, "dtype"):
        return f"{value.dtype}{[*value.shape]}"
    if isinstance(value, int | float):
        return repr(value)
    return f"{type(value).__name__}{f'[{len(value)}]' if isinstance(value, Sized) else ''}"


def _taken(value: Any, places: NDArray[Any] | slice) -> Any:  # noqa: ANN401 - what a column may be
    if isinstance(value, dict):
        return {name: _taken(part, places) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(value[place] for place in np.arange(len(value))[places].tolist()) if value else ()
    return None if value is None else value[places]


def _split(value: Any, size: int, count: int) -> Any:  # noqa: ANN401 - what a column may be
    if isinstance(value, dict):
        parts = {name: _split(part, size, count) for name, part in value.items()}
        return [{name: part[number] for name, part in parts.items()} for number in range(count)]
    if count == 1:
        return (value,)
    if not isinstance(value, np.ndarray) and hasattr(value, "split"):
        return tuple(value.split(size))  # of torch, whose every call gives up the interpreter: one for all parts
    return [None if value is None else value[number * size : (number + 1) * size] for number in range(count)]


def _rolled(value: Any, shift: int) -> Any:  # noqa: ANN401 - what a column may be
    if isinstance(value, dict):
        return {name: _rolled(part, shift) for name, part in value.items()}
    if isinstance(value, tuple):
        start = -shift % len(value) if value else 0
        return value[start:] + value[:start]
    return None if value is None else np.roll(value, shift, axis=0)


def _joined(values: Sequence[Any], counts: Sequence[int]) -> Any:  # noqa: ANN401 - what a column may be
    first = values[0]
    if isinstance(first, dict):
        return {name: _joined([value[name] for value in values], counts) for name in first}
    if isinstance(first, tuple):
        if not any(values):
            return ()
        return tuple(entry for value, count in zip(values, counts, strict=True) for entry in value or (b"",) * count)
    return None if any(value is None for value in values) else np.concatenate(values)
