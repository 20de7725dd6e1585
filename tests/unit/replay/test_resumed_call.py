"""What an actor is answered when it opens its streams again while the disk holds everything up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.naming import because, naming
from tests.support.replay_messages import opening
from tests.support.replay_streams import append, make_chunk, make_config, make_replay, open_streams
from tests.unit.replay.logs import empty_replay
from tidemill.config.services import StorageSettings
from tidemill.errors import Reason, Unavailable
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.log.log import ReplayLog
from tidemill.services.replay.log.open import open_replay_log
from tidemill.services.replay.log.segments import SegmentFile
from tidemill.services.replay.servicer import ReplayServicer
from tidemill.services.replay.state.memory import MemoryBudget

_WAIT_S = 30.0
_CONTEXT: Any = None  # of which the servicer makes no use


class Held(SegmentFile):
    """A file that is written only while the disk lets it."""

    disk = threading.Event()

    def write(self, offset: int, data: bytes) -> None:
        """Wait, then write."""
        assert self.disk.wait(_WAIT_S)
        super().write(offset, data)


async def resuming(epoch: int) -> AsyncIterator[bytes]:
    """Yield the first message of a call, and then none for ever."""
    yield opening(epoch=epoch).SerializeToString()
    await asyncio.Event().wait()


async def told_while_another_stores(folder: Path) -> tuple[list[int], list[int]]:
    """Resume an epoch, store a chunk of it before the disk recovers; return the answer and what was stored then."""
    recovered = open_replay_log(folder, MemoryBudget(0), empty_replay)
    replay = recovered.replay
    Held.disk.set()
    log = ReplayLog(recovered, StorageSettings(folder=str(folder)), lambda: None, Held)
    replay.create_table(make_config())
    opened = open_streams(replay)
    await log.commits.durable(replay.sequence)
    Held.disk.clear()
    append(replay, opened, [make_chunk(0, 0, 0, 4)])
    servicer = ReplayServicer(replay, AdmissionQueue(asyncio.get_running_loop().time), 2**20, log)
    call: Any = servicer.Append(resuming(opened.epoch.number), _CONTEXT)
    answer = asyncio.ensure_future(anext(call))
    while opened.epoch.connections != 2:
        await asyncio.sleep(0)
    append(replay, opened, [make_chunk(0, 0, 4, 4)])
    assert not answer.done()
    Held.disk.set()
    told = list((await asyncio.wait_for(answer, _WAIT_S)).next_steps)
    await call.aclose()
    await log.close()
    return told, opened.epoch.next_steps()


def test_resumed_call_is_told_of_durable_steps_only(tmp_path: Path) -> None:
    """Steps stored while its opening waits for the disk may be lost with a crash: the answer leaves them out."""
    assert asyncio.run(told_while_another_stores(tmp_path)) == ([4], [8])


async def two_calls_of_one_epoch() -> list[int]:
    """Open an epoch twice in a server without a log; return what the second is told."""
    replay = make_replay(make_config())
    servicer = ReplayServicer(replay, AdmissionQueue(asyncio.get_running_loop().time), 2**20)

    async def converse(epoch: int, told: asyncio.Queue[Any]) -> None:
        async for answer in servicer.Append(resuming(epoch), _CONTEXT):
            told.put_nowait(answer)

    told: asyncio.Queue[Any] = asyncio.Queue()
    first = asyncio.create_task(converse(0, told))
    epoch = (await told.get()).epoch
    second = asyncio.create_task(converse(epoch, told))
    with pytest.raises(Unavailable, match=naming("epoch", epoch), check=because(Reason.CALL_REPLACED)):
        await asyncio.wait_for(first, _WAIT_S)
    answer = await told.get()
    assert answer.epoch == epoch
    assert not second.done()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert replay.streams.epochs[0].connections == 0
    return list(answer.next_steps)


def test_second_call_of_an_epoch_ends_the_first() -> None:
    """A call whose caller is gone without a word stores nothing more once its actor is back."""
    assert asyncio.run(two_calls_of_one_epoch()) == [0]
