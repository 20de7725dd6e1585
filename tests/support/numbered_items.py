"""A table whose items are single steps, each its number."""

from __future__ import annotations

from tests.support.waiting import WAIT_S
from tidemill.replay import ReplayWriter, SelectorConfig, SelectorKind, TableConfig, signature_like

UNIFORM = SelectorConfig(SelectorKind.UNIFORM)
TABLE = TableConfig("t", signature_like({"number": 0}), UNIFORM, max_items=100, max_item_steps=1)


def write(address: str, count: int, table: TableConfig = TABLE) -> None:
    """Write items whose only step is their number."""
    with ReplayWriter(address, table, chunk_length=1) as writer:
        for number in range(count):
            writer.append({"number": number})
            writer.create_item(table.name, last=1)
        writer.flush(WAIT_S)
