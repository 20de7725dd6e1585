"""Deletions that take longer than their callers wait."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.replay_streams import append, make_chunk, make_config, make_items, make_replay, open_streams
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.servicer import ReplayServicer
from tidemill.services.replay.state.replay_state import ReplayState

_CONTEXT: Any = None  # of which the servicer makes no use


@pytest.fixture(name="replay")
def _replay(monkeypatch: pytest.MonkeyPatch) -> ReplayState:
    """A table of 40 items, of which a deletion removes four at a time."""
    monkeypatch.setattr("tidemill.services.replay.state.replay_state._SLOTS_AT_ONCE", 4)
    replay = make_replay(make_config())
    session = open_streams(replay)
    for first in range(0, 40, 4):
        append(replay, session, [make_chunk(0, 0, first, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])
    return replay


def _give_up(replay: ReplayState, then: Callable[[ReplayServicer], object], *, once_gone: bool) -> list[dict[str, Any]]:
    """Begin a deletion and cancel its call, do what is given, at once or once the call is gone, and wait for the end.

    Returns:
        What asyncio complains of.
    """
    complaints: list[dict[str, Any]] = []
    table = replay.find("t")

    async def give_up() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        servicer = ReplayServicer(replay, AdmissionQueue(asyncio.get_running_loop().time), 2**20)
        request = pb.DeleteMatchingItemsRequest(table="t", actor_id="a")
        call = asyncio.create_task(servicer.DeleteMatchingItems(request.SerializeToString(), _CONTEXT))
        while table.size == 40:
            await asyncio.sleep(0)
        call.cancel()
        if once_gone:
            await asyncio.wait((call,))
        then(servicer)
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        assert call.cancelled()

    asyncio.run(give_up())
    gc.collect()  # asyncio complains of an error once nobody can ask for it any more
    return complaints


@pytest.mark.parametrize("stops, left", [(False, 0), (True, 36)], ids=["server runs on", "server stops"])
def test_deletion_whose_caller_is_gone_ends(replay: ReplayState, stops: bool, left: int) -> None:
    """A deadline cuts the answer, not the deletion; only a server that stops leaves the rest of the items."""
    with capture_logs() as logs:
        assert _give_up(replay, lambda each: each.stop_deletions() if stops else None, once_gone=False) == []
    assert logs == []
    assert replay.find("t").size == left


@pytest.mark.parametrize("once_gone", [False, True])
def test_deletion_that_fails_without_its_caller_is_one_line_of_the_log(replay: ReplayState, once_gone: bool) -> None:
    """As when its table is dropped meanwhile; it was a traceback of asyncio's, or nothing."""
    table = replay.find("t")
    with capture_logs() as logs:
        assert _give_up(replay, lambda _: replay.drop_table(table), once_gone=once_gone) == []
    (line,) = logs
    assert (line["log_level"], line["method"], line["exc_info"]) == ("error", "DeleteMatchingItems", None)
    assert "'t'" in line["reason"]
