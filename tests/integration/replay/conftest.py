"""A replay service in the test's process, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.replay_service import LocalServer, local_server
from tidemill.replay.client import ReplayClient


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """An empty server."""
    with local_server() as running:
        yield running


@pytest.fixture
def client(server: LocalServer) -> Iterator[ReplayClient]:
    """A client of it."""
    with ReplayClient(server.address) as opened:
        yield opened
