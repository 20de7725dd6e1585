"""Creation of a table from the episodes of a dataset, shared by all importers of datasets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from tidemill.errors import AlreadyExists, InvalidArgument, ResourceExhausted
from tidemill.replay.argument_types import check_deadline
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig, TableDescription
from tidemill.replay.transfer.new_table import removed_on_failure
from tidemill.replay.writing.steps import signature_like
from tidemill.replay.writing.stream_items import ItemWindow
from tidemill.replay.writing.writer import ReplayWriter

Rows = Iterator[tuple[dict[str, Any], bool]]
"""Rows as actors write them, and whether each is the last of its episode."""


def fill_table(  # noqa: PLR0913 - each is a separate condition
    address: str,
    table: str,
    rows: Rows,
    *,
    name: str,
    steps: int,
    item_steps: int,
    history: int = 0,
    sampler: SelectorConfig | None,
    timeout_s: float,
) -> None:
    """Create a table and write rows into it, with an item for each decision, as actors make them.

    Args:
        address: Of the server.
        table: Name of the table; must not exist.
        rows: The rows of every episode, in order.
        name: Of the dataset, for messages.
        steps: Most items.
        item_steps: Rows of an item from its decision on; those behind the end of an episode are of the next one.
            1: every row is an item.
        history: Rows before these that an item has besides.
        sampler: How items are drawn; None is uniformly.
        timeout_s: Longest wait for the server, in seconds.

    Raises:
        InvalidArgument: There are no rows, or one that no column can hold.
        AlreadyExists: The server has a table of that name; nothing was written.
        ResourceExhausted: The server has no memory for all items.
        Unavailable: The server cannot be reached, or took nothing for `timeout_s`. No part of the table is left then,
            unless the message says so.
    """
    first = next(rows, None)
    if first is None or not steps:
        raise InvalidArgument(f"the dataset {name!r} has no steps")
    windows = ItemWindow(item_steps, history=history, across_episodes=True)
    config = TableConfig(
        table,
        signature_like(first[0]),
        sampler or SelectorConfig(SelectorKind.UNIFORM),
        max_items=steps if item_steps > 1 else 2 * steps,  # an episode's last observation is a row, too
        max_item_steps=item_steps + history,
    )
    check_deadline("timeout_s", timeout_s)
    with ReplayClient(address, deadline_s=timeout_s) as client:
        client.wait_for_ready(timeout_s)
        # not by what `create_table` returns: gRPC repeats a call whose answer was lost, which finds its own table then
        if table in [found.config.name for found in client.list_tables()]:
            raise AlreadyExists(
                f"table {table!r} is at {address} already: choose another name or, if an import was interrupted there, "
                f"run `tidemill replay drop {address} {table}`"
            )
        with removed_on_failure(client, address, table):
            client.create_table(config)
            _write(address, config, chain([first], rows), windows, timeout_s)
            _check_whole(address, name, client.describe_table(table))


def _write(address: str, config: TableConfig, rows: Rows, windows: ItemWindow, timeout_s: float) -> None:
    with ReplayWriter(address, config, windows=windows, timeout_s=timeout_s, counts_decisions=False) as writer:
        for row, is_last in rows:
            writer.append(row, is_decision=not is_last or windows.length == 1, timeout_s=timeout_s)
        for _ in range(windows.length - 2):  # so that the last decisions, too, have whole items
            writer.append(row | {"is_first": True}, is_decision=False, timeout_s=timeout_s)
        writer.flush(timeout_s)


def _check_whole(address: str, name: str, filled: TableDescription) -> None:
    """Raise ResourceExhausted if a table does not have all items: for room, a server evicts the oldest silently."""
    if filled.evictions:
        why = (
            f"the dataset has more than the {filled.config.max_items:,} that it says"
            if filled.inserts > filled.config.max_items
            else "its memory is full. Start it with --folder, which keeps the rest on disk, or raise max_memory_mib"
        )
        raise ResourceExhausted(
            f"the server at {address} has kept {filled.items:,} of {filled.inserts:,} items of {name!r}: {why}"
        )
