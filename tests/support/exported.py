"""A table for tests of exports, and what an export has."""

from __future__ import annotations

from pathlib import Path

from tests.support.replay_service import open_appender, write
from tests.support.replay_streams import make_config
from tests.support.waiting import WAIT_S
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableConfig
from tidemill.replay.transfer.exported_table import ExportedTable

_TABLE = make_config()


def fill(address: str, table: TableConfig = _TABLE, steps: int = 40) -> None:
    """Create a table and write an item of one step at each of some steps."""
    with ReplayClient(address) as client, open_appender(address) as appender:
        client.create_table(table)
        write(appender, range(steps))
        assert appender.flush(WAIT_S)


def steps_of(folder: Path) -> list[int]:
    """Return the number of the step of each item of an exported table, oldest first."""
    exported = ExportedTable(folder)
    steps = exported.rows(0, exported.steps)["step"]
    return steps[exported.first_rows].tolist()  # type: ignore[no-any-return]
