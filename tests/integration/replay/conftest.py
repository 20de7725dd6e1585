"""A replay service in the test's process, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.replay_service import LocalServer, local_server
from tests.support.waiting import WAIT_S
from tidemill.replay import Server
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling import late_batches
from tidemill.replay.writing import held_inserts


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
def patient_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have writers and datasets that ask a server why nothing comes wait as long as a busy machine takes to answer."""
    for module in (held_inserts, late_batches):
        monkeypatch.setattr(module, "ReplayClient", lambda address, **_: ReplayClient(address, deadline_s=WAIT_S))


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Three that know nothing of one another."""
    with ExitStack() as stack:
        yield [stack.enter_context(Server()) for _ in range(3)]
