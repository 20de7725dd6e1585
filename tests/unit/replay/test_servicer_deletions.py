"""Deletions that take longer than their callers wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.replay_streams import append, make_chunk, make_config, make_items, make_replay, open_streams
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.servicer import ReplayServicer

_CONTEXT: Any = None  # of which the servicer makes no use


@pytest.mark.parametrize("stops,left", [(False, 0), (True, 36)], ids=["server runs on", "server stops"])
def test_deletion_whose_caller_is_gone_ends(monkeypatch: pytest.MonkeyPatch, stops: bool, left: int) -> None:
    """A deadline cuts the answer, not the deletion; only a server that stops leaves the rest of the items."""
    monkeypatch.setattr("tidemill.services.replay.state.replay_state._SLOTS_AT_ONCE", 4)
    replay = make_replay(make_config())
    session, table = open_streams(replay), replay.find("t")
    for first in range(0, 40, 4):
        append(replay, session, [make_chunk(0, 0, first, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])

    async def give_up() -> None:
        servicer = ReplayServicer(replay, AdmissionQueue(asyncio.get_running_loop().time), 2**20)
        request = pb.DeleteMatchingItemsRequest(table="t", actor_id=session.epoch.actor_id)
        call = asyncio.create_task(servicer.DeleteMatchingItems(request.SerializeToString(), _CONTEXT))
        while table.size == 40:
            await asyncio.sleep(0)
        call.cancel()
        if stops:
            servicer.stop_deletions()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        assert call.cancelled()

    asyncio.run(give_up())
    assert table.size == left
