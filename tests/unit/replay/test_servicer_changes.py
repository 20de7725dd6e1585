"""Changes of a large table, which are made part by part: others act meanwhile, and callers may be gone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.replay_streams import append, make_chunk, make_config, make_items, make_replay, open_streams
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableUpdate
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import pack_config, pack_update
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.servicer import ReplayServicer
from tidemill.services.replay.state.append import AppendSession
from tidemill.services.replay.state.replay_state import ReplayState

_CONTEXT: Any = None  # of which the servicer makes no use
_CONFIG = make_config(max_item_steps=1)
_ITEMS = 40
_LESS = 10
_CHANGES: dict[str, Any] = {
    "DeleteMatchingItems": pb.DeleteMatchingItemsRequest(table="t", actor_id="a"),
    "UpdateTable": pack_update("t", TableUpdate(max_items=_LESS)),
    "CreateTable": pb.CreateTableRequest(config=pack_config(replace(_CONFIG, max_items=_LESS)), redeclare=True),
    "ResetTable": pb.ResetTableRequest(name="t"),
    "DropTable": pb.DropTableRequest(name="t"),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few items or chunks at a time."""
    monkeypatch.setattr("tidemill.services.replay.state.replay_state._SLOTS_AT_ONCE", 4)
    monkeypatch.setattr("tidemill.services.replay.chunks.store._RELEASED", 2)


def _filled() -> tuple[ReplayState, AppendSession]:
    replay = make_replay(_CONFIG)
    session = open_streams(replay)
    for first in range(0, _ITEMS, 4):
        _write(replay, session, first)
    return replay, session


def _write(replay: ReplayState, session: AppendSession, first: int) -> None:
    append(replay, session, [make_chunk(0, 0, first, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])


async def _begun(servicer: ReplayServicer, replay: ReplayState, change: str) -> asyncio.Task[Any]:
    """Return a call that has made a part of a change."""
    chunks, table = replay.chunks, replay.find("t")
    call = asyncio.create_task(getattr(servicer, change)(_CHANGES[change].SerializeToString(), _CONTEXT))
    while (replay.chunks, table.size) == (chunks, _ITEMS):
        await asyncio.sleep(0)
    assert not call.done()
    return call


@pytest.mark.parametrize(
    "change, items", [("DeleteMatchingItems", 4), ("UpdateTable", _LESS), ("CreateTable", _LESS), ("ResetTable", 4)]
)
def test_others_write_while_a_table_is_changed(change: str, items: int) -> None:
    """What they write stays."""
    replay, session = _filled()

    async def write_meanwhile() -> None:
        call = await _begun(ReplayServicer(replay, AdmissionQueue(lambda: 0.0), 2**20), replay, change)
        _write(replay, session, _ITEMS)
        await call

    asyncio.run(write_meanwhile())
    table = replay.find("t")
    assert table.items.ages(table.items.oldest_first()).tolist() == list(range(items))[::-1]
    assert replay.chunks == -(-items // 4)


def test_others_write_while_items_are_weighed_by_another_exponent() -> None:
    """What they write is weighed as well."""
    replay = make_replay(replace(_CONFIG, sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0)))
    session, table = open_streams(replay), replay.find("t")
    request = pack_update("t", TableUpdate(priority_exponent=0.5)).SerializeToString()

    def write(first: int) -> None:
        items = make_items(0, [(0, i, 1) for i in range(4)], [4.0] * 4)
        append(replay, session, [make_chunk(0, 0, first, 4)], [items])

    async def write_meanwhile() -> None:
        call = asyncio.create_task(
            ReplayServicer(replay, AdmissionQueue(lambda: 0.0), 2**20).UpdateTable(request, _CONTEXT)
        )
        for first in range(_ITEMS, 2 * _ITEMS, 4):
            await asyncio.sleep(0)
            assert (call.done(), table.total_weight) == (False, 4.0 * table.size)
            write(first)
        await call

    for first in range(0, _ITEMS, 4):
        write(first)
    asyncio.run(write_meanwhile())
    assert (table.size, table.total_weight) == (2 * _ITEMS, 2.0 * table.size)


def _give_up(
    replay: ReplayState, change: str, then: Callable[[ReplayServicer], object], *, once_gone: bool
) -> list[dict[str, Any]]:
    """Begin a change and cancel its call, do what is given, at once or once the call is gone, and wait for the end.

    Returns:
        What asyncio complains of.
    """
    complaints: list[dict[str, Any]] = []

    async def give_up() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        servicer = ReplayServicer(replay, AdmissionQueue(lambda: 0.0), 2**20)
        call = await _begun(servicer, replay, change)
        call.cancel()
        if once_gone:
            await asyncio.wait((call,))
        then(servicer)
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        assert call.cancelled()

    asyncio.run(give_up())
    gc.collect()  # asyncio complains of an error once nobody can ask for it any more
    return complaints


@pytest.mark.parametrize("stops", [False, True], ids=["server runs on", "server stops"])
@pytest.mark.parametrize(
    "change, left, rest",
    [
        ("DeleteMatchingItems", [0], [36]),
        ("UpdateTable", [_LESS], [36]),
        ("CreateTable", [_LESS], [36]),
        ("ResetTable", [0], [0]),
        ("DropTable", [], []),
    ],
)
def test_change_whose_caller_is_gone_ends(change: str, left: list[int], rest: list[int], stops: bool) -> None:
    """A deadline cuts the answer, not the change; only a server that stops leaves the rest."""
    replay, _ = _filled()
    with capture_logs() as logs:
        assert _give_up(replay, change, lambda each: each.stop_changes() if stops else None, once_gone=False) == []
    assert not [line for line in logs if line["log_level"] != "info"]
    assert [table.size for table in replay.tables] == (rest if stops else left)
    assert not (replay.memory.held and not stops)


def test_table_that_is_dropped_while_a_call_shrinks_it_is_made_by_that_call() -> None:
    """The call asks for a table, whatever there was of this name."""
    replay, _ = _filled()

    async def drop_meanwhile() -> pb.CreateTableResponse:
        call = await _begun(ReplayServicer(replay, AdmissionQueue(lambda: 0.0), 2**20), replay, "CreateTable")
        replay.drop_table(replay.find("t"))
        answer: pb.CreateTableResponse = await call
        return answer

    assert asyncio.run(drop_meanwhile()).created
    table = replay.find("t")
    assert (table.size, table.config.max_items) == (0, _LESS)


@pytest.mark.parametrize("change", ["DeleteMatchingItems", "UpdateTable"])
@pytest.mark.parametrize("once_gone", [False, True])
def test_change_that_fails_without_its_caller_is_one_line_of_the_log(change: str, once_gone: bool) -> None:
    """As when its table is dropped meanwhile; it was a traceback of asyncio's, or nothing."""
    replay, _ = _filled()
    table = replay.find("t")
    with capture_logs() as logs:
        assert _give_up(replay, change, lambda _: replay.drop_table(table), once_gone=once_gone) == []
    (line,) = logs
    assert (line["log_level"], line["method"], line["exc_info"]) == ("error", change, None)
    assert "'t'" in line["reason"]
