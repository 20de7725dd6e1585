"""Several tables whose items make up each batch in fixed fractions, on a dataset's servers or on others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidemill.errors import InvalidArgument
from tidemill.replay.argument_types import check_type
from tidemill.replay.named_table import addresses_of, read_table
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.shares import split_batch
from tidemill.replay.table_config import TableConfig
from tidemill.types import ColumnSpec, Signature


@dataclass(frozen=True)
class TableAt:
    """A table on other servers than those of a dataset, as one of its several tables.

    The table must exist: a dataset never creates it, and ends with an error if it is lost.

    Attributes:
        table: Its configuration or its name.
        addresses: `host:port` or `unix:///path` of its server, or of each of several.
    """

    table: TableConfig | str
    addresses: str | tuple[str, ...]


Tables = (
    TableConfig
    | str
    | Mapping[TableConfig, float]
    | Mapping[str, float]
    | Mapping[TableAt, float]
    | Mapping[TableConfig | TableAt, float]
    | Mapping[str | TableAt, float]
)
"""A table, its name, or several with the fraction of a batch that comes from each."""


@dataclass(frozen=True, slots=True, eq=False)
class TablePart:
    """What one table gives to each batch.

    Attributes:
        table: The table.
        servers: Those that have it.
        items: Items of a batch that come from it.
        must_exist: Whether sampling ends if a server has no such table, instead of creating it.
    """

    table: TableConfig
    servers: tuple[str, ...] | ShardDirectory
    items: int
    must_exist: bool


def read_parts(
    servers: tuple[str, ...] | ShardDirectory,
    tables: Tables,
    batch_size: int,
    *,
    create: bool,
) -> tuple[TablePart, ...]:
    """Return the parts of a batch, of one table or of several.

    Args:
        servers: Those of each table that is not a `TableAt`.
        tables: As a dataset takes them.
        batch_size: Items of a batch.
        create: Whether tables may be created; those of a `TableAt` never are.

    Raises:
        InvalidArgument: There is no table, the fractions or the batch size do not fit, or tables cannot be mixed.
        TypeError: A table is of another type.
        NotFound: No server has a table.
        Unavailable: A server did not answer within 10 s, and no other has the table.
    """
    instead = "a TableConfig, the name of a table, or a dict with several and their fractions"
    check_type("tables", tables, (TableConfig, str, Mapping), instead)
    fractions: Mapping[Any, float] = tables if isinstance(tables, Mapping) else {tables: 1.0}
    if not fractions:
        raise InvalidArgument("tables is empty, must name at least one")
    found: list[tuple[TableConfig, tuple[str, ...] | ShardDirectory, bool]] = []
    for each in fractions:
        if isinstance(each, TableAt):
            others = addresses_of(each.addresses)
            found.append((read_table(others, each.table, create=False, must_exist=True), others, True))
        else:
            found.append((read_table(servers, each, create=create), servers, False))
    first = found[0][0]
    for table, _, _ in found[1:]:
        if why := mismatch(table, first):
            raise InvalidArgument(f"tables {first.name!r} and {table.name!r} cannot be mixed: {why}")
    if abs(sum(fractions.values()) - 1) > 1e-6 or min(fractions.values()) <= 0:
        given = {table.name: fraction for (table, _, _), fraction in zip(found, fractions.values(), strict=True)}
        raise InvalidArgument(f"fractions are {given}, must be more than 0 and add up to 1")
    sizes = split_batch(batch_size, list(fractions.values()))
    if min(sizes) < 1:
        raise InvalidArgument(f"batch_size is {batch_size}, which gives the tables {sizes} items, at least 1 each")
    return tuple(
        TablePart(table, its_servers, items, must_exist)
        for (table, its_servers, must_exist), items in zip(found, sizes, strict=True)
    )


def mismatch(table: TableConfig, first: TableConfig) -> str:
    """Return why items of a table cannot be mixed with those of the first one; empty if they can.

    A table may have more columns, and others of a wider type, such as float64, which are cast.
    """
    columns = {column.name: column for column in table.signature}
    for wanted in first.signature:
        if (column := columns.get(wanted.name)) is None:
            return f"column {wanted.name!r} is missing among {', '.join(columns)}, must be {_described(wanted)}"
        if column.shape != wanted.shape or not np.can_cast(column.dtype, wanted.dtype, "same_kind"):
            return f"column {wanted.name!r} is {_described(column)}, must be {_described(wanted)}"
    if table.max_item_steps != first.max_item_steps:
        return f"items have up to {table.max_item_steps} steps, must have {first.max_item_steps}"
    return ""


def casts(signature: Signature, wanted: Signature) -> dict[str, np.dtype[Any]] | None:
    """Return the type of each column that a batch has in the end; None if the table's columns are those already."""
    own = [(column.name, column.dtype) for column in signature]
    if own == [(column.name, column.dtype) for column in wanted]:
        return None
    return {column.name: np.dtype(column.dtype) for column in wanted}


def _described(column: ColumnSpec) -> str:
    return f"{column.dtype} {list(column.shape)}"
