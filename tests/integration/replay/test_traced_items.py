"""Trace contexts of items on their way through a server that makes no spans: what comes in is handed on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.numbered_items import TABLE, write
from tests.support.replay_service import LocalServer
from tests.support.waiting import WAIT_S
from tidemill.replay import HostRows, ReplayDataset
from tidemill.replay.chunk import Chunk
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.writing import append_message
from tidemill.services.replay.item_traces import MOST_DRAWS

_CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message has a context."""

    def trace(data: pb.AppendData, _chunks: Sequence[Chunk]) -> None:
        data.traceparent = _CONTEXT

    monkeypatch.setattr(append_message, "_traced", trace)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("mirror_mib", [0, 1])
def test_an_item_has_its_context_in_its_first_batches_once_in_each(server: LocalServer, mirror_mib: int) -> None:
    """Of a table with one item, batches of four have it at the first place, and the ninth batch not at all."""
    write(server.address, 1)
    keep = HostRows(mirror_mib) if mirror_mib else None
    with ReplayDataset(server.address, TABLE, 4, timeout_s=WAIT_S, keep=keep) as dataset:
        found = [next(dataset).traces for _ in range(MOST_DRAWS + 1)]
    assert found == [(_CONTEXT.encode(), b"", b"", b"")] * MOST_DRAWS + [()]


def test_items_of_a_message_without_a_context_have_none(server: LocalServer) -> None:
    """As all have that are written without `log.trace_every`."""
    write(server.address, 1)
    with ReplayDataset(server.address, TABLE, 4, timeout_s=WAIT_S) as dataset:
        assert next(dataset).traces == ()
