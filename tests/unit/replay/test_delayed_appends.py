"""Appends that waited for a rate limiter: what happens between their storing and their calls' next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.replay_streams import (
    append,
    make_chunk,
    make_config,
    make_items,
    make_replay,
    open_streams,
    sample_from,
)
from tests.unit.replay.logs import empty_replay
from tidemill.config.services import StorageSettings
from tidemill.replay.chunk import ItemBatch
from tidemill.replay.table_config import RateLimiterConfig, TableUpdate
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import pack_append
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.log.log import ReplayLog
from tidemill.services.replay.log.open import open_replay_log
from tidemill.services.replay.servicer import ReplayServicer
from tidemill.services.replay.state.memory import MemoryBudget
from tidemill.services.replay.state.replay_state import ReplayState

_CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_QUEUE = make_config(max_items=8, max_item_steps=1, limiter=RateLimiterConfig(queue_size=4))


class Scene:
    """A full queue, and an append of four steps and items that waits for room in it."""

    def __init__(self, replay: ReplayState, log: ReplayLog | None = None) -> None:
        self.replay, self.table = replay, replay.find("t")
        self.session = open_streams(replay)
        self.store(0)
        self.admission = AdmissionQueue(asyncio.get_running_loop().time)
        self.servicer = ReplayServicer(replay, self.admission, 2**20, log)
        request = pb.AppendRequest(data=pack_append([make_chunk(0, 0, 4, 4)], [_items()]))
        request.data.traceparent = _CONTEXT
        self.call = asyncio.ensure_future(self.servicer._append(self.session, request))

    def store(self, first: int) -> None:
        """Append four steps at once."""
        append(self.replay, self.session, [make_chunk(0, 0, first, 4)], [_items()])

    async def admit(self) -> None:
        """Let the append be stored, whose call has not had its turn yet."""
        await asyncio.sleep(0)
        assert self.admission.waiting(self.table, "insert") == 1
        self.replay.delete(self.table, self.table.items.keys(self.table.items.live()))
        self.admission.changed()
        assert self.table.size == 4
        assert not self.call.done()


def _items() -> ItemBatch:
    return make_items(0, [(0, i, 1) for i in range(4)])


async def test_append_of_a_call_that_is_cancelled_counts(tmp_path: Path) -> None:
    """Its steps are stored: they are among the durable ones, and a draw that waits for their count is made."""
    recovered = open_replay_log(tmp_path, MemoryBudget(0), empty_replay)
    recovered.replay.create_table(_QUEUE)
    log = ReplayLog(recovered, StorageSettings(folder=str(tmp_path)), lambda: None)
    scene = Scene(recovered.replay, log)
    reached = asyncio.ensure_future(scene.servicer._clock.reach(8))
    await scene.admit()
    scene.call.cancel()
    await asyncio.gather(scene.call, return_exceptions=True)
    await asyncio.sleep(0)
    assert reached.done()
    await log.commits.durable(recovered.replay.sequence)
    assert log.stored_steps(scene.table).env_steps == 8
    await log.close()


def _replace_items(scene: Scene) -> None:
    scene.replay.delete(scene.table, scene.table.items.keys(scene.table.items.live()))
    scene.store(8)


def _shrink(scene: Scene) -> None:
    scene.replay.update_table(scene.table, TableUpdate(max_items=1, queue_size=1))


@pytest.mark.parametrize("change", [_replace_items, _shrink])
async def test_item_that_has_left_its_slot_at_once_is_not_mistaken(change: Callable[[Scene], None]) -> None:
    """Its trace does not pass to another item, and its append does not fail, whose slot the table may have no more."""
    scene = Scene(make_replay(_QUEUE))
    await scene.admit()
    change(scene)
    await scene.call
    batch, _ = scene.servicer._traces.drawn(scene.table, sample_from(scene.table, scene.table.size, True))
    assert batch.traces == ()
