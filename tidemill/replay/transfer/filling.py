"""Creation of a table from the episodes of a dataset, shared by all importers of datasets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from tidemill.errors import AlreadyExists, InvalidArgument, TidemillError
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.replay.writing.steps import signature_like
from tidemill.replay.writing.stream_items import ItemWindow
from tidemill.replay.writing.writer import ReplayWriter

Rows = Iterator[tuple[dict[str, Any], bool]]
"""Rows as actors write them, and whether each is the last of its episode."""


def fill_table(
    address: str,
    table: str,
    rows: Rows,
    *,
    name: str,
    steps: int,
    item_steps: int,
    sampler: SelectorConfig | None,
    timeout_s: float,
) -> None:
    """Create a table and write rows into it.

    Args:
        address: Of the server.
        table: Name of the table; must not exist.
        rows: The rows of every episode, in order.
        name: Of the dataset, for messages.
        steps: Most items.
        item_steps: Rows of an item; a shorter episode is one shorter item.
        sampler: How items are drawn; None is uniformly.
        timeout_s: Longest wait for the server, in seconds.

    Raises:
        InvalidArgument: There are no rows, or one that no column can hold.
        AlreadyExists: The server has a table of that name; nothing was written.
        Unavailable: The server cannot be reached, or took nothing for `timeout_s`. No part of the table is left then,
            if the server could still be told.
    """
    first = next(rows, None)
    if first is None or not steps:
        raise InvalidArgument(f"the dataset {name!r} has no steps")
    config = TableConfig(
        table,
        signature_like(first[0]),
        sampler or SelectorConfig(SelectorKind.UNIFORM),
        max_items=steps if item_steps > 1 else 2 * steps,  # an episode's last observation is a row, too
        max_item_steps=item_steps,
    )
    with ReplayClient(address, deadline_s=timeout_s) as client:
        client.wait_for_ready(timeout_s)
        # not by what `create_table` returns: gRPC repeats a call whose answer was lost, which finds its own table then
        if table in [found.config.name for found in client.list_tables()]:
            raise AlreadyExists(f"table {table!r} is at {address} already: choose another name")
        try:
            client.create_table(config)
            _write(address, config, chain([first], rows), item_steps, timeout_s)
        except AlreadyExists:  # another program has created one of that name meanwhile
            raise
        except BaseException:
            with suppress(TidemillError):
                client.drop_table(table)
            raise


def _write(address: str, config: TableConfig, rows: Rows, item_steps: int, timeout_s: float) -> None:
    windows = ItemWindow(item_steps)
    with ReplayWriter(address, config, windows=windows, timeout_s=timeout_s, counts_decisions=False) as writer:
        for row, is_last in rows:
            writer.append(row, timeout_s=timeout_s)
            if is_last:
                if (count := writer.episode_steps()) < item_steps:
                    writer.create_item(config.name, last=count)  # so that every step is in an item
                writer.end_episode()
        writer.flush(timeout_s)
