"""A replay service in the test's process, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.replay_service import LocalServer, local_server
from tidemill.replay import Server
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


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Three that know nothing of one another."""
    with ExitStack() as stack:
        yield [stack.enter_context(Server()) for _ in range(3)]
