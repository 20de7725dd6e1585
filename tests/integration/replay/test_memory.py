"""What a server's memory grows by, whatever its callers do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.replay.service import ServerProcess, server_process
from tests.unit.replay.streams_for_tests import make_config
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import SelectorConfig, SelectorKind


def resident_mib(server: ServerProcess) -> float:
    """Return the resident memory of a server, in MiB."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A server process."""
    with server_process() as running:
        yield running


def test_table_of_a_hundred_million_items_takes_memory_only_as_it_fills(server: ServerProcess) -> None:
    """Whatever the selectors, an empty table is small: its columns are memory once there are items."""
    with ReplayClient(server.address) as client:
        client.create_table(make_config("first"))
        for kind in SelectorKind:
            selector, before = SelectorConfig(kind), resident_mib(server)
            client.create_table(make_config(kind.value, sampler=selector, remover=selector, max_items=10**8))
            assert resident_mib(server) - before < 8, kind
