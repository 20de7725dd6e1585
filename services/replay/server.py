"""The parts of a replay server put together, whether a process has it alone or a program has it in a thread."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.ma  # np.unique would do so when first called, and every caller would wait for it

from tidemill import container_limits
from tidemill.config.services import ReplaySettings
from tidemill.logger import LateLogger
from tidemill.rpc.server import RpcServer
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.log.log import ReplayLog
from tidemill.services.replay.log.logged_blocks import LoggedBlocks
from tidemill.services.replay.log.open import OpenedLog, open_replay_log
from tidemill.services.replay.servicer import ReplayServicer
from tidemill.services.replay.state.memory import MemoryBudget, default_budget_bytes
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.state.streams import EPOCH_RANDOM_BITS, first_epoch

_log = LateLogger()


class ReplayServer:
    """One replay server on the running event loop, where every method is called.

    Attributes:
        rpc: Its gRPC server.
        replay: Its tables and streams, to be read only.
        admission: Its calls that wait.
        log: Its log; None if the tables are kept in memory only.
    """

    def __init__(self, settings: ReplaySettings) -> None:
        """Restore the tables of the folder, if there is one; `start` listens.

        Raises:
            ConfigError: The address is refused, see `RpcServer`.
            FatalError: Another process listens at the address; or the folder cannot be read, has files of another
                format, or is another server's.
        """
        self.rpc = RpcServer("replay", settings.server)
        self.rpc.check_free()
        opened = _open(settings)
        self.replay = opened.replay if opened is not None else _empty(settings, _budget(settings))
        self.admission = AdmissionQueue(time.monotonic)
        self.log = ReplayLog(opened, settings.storage, self.admission.changed) if opened is not None else None
        self._servicer = ReplayServicer(
            self.replay,
            self.admission,
            settings.server.max_message_bytes,
            self.log,
            max_request_bytes=settings.server.request_limit_bytes,
        )
        self._servicer.add_to(self.rpc)

    async def start(self) -> str:
        """Listen and serve; return the address, with the port that was taken. FatalError: it cannot be bound."""
        address = await self.rpc.start()
        await self.rpc.set_serving(True)
        return address

    async def serve_until(self, stop: asyncio.Future[Any]) -> None:
        """Wait for `stop`. FatalError: the log cannot be written any more."""
        waited: set[asyncio.Future[Any]] = {stop} if self.log is None else {stop, self.log.failed}
        done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()

    async def stop(self) -> None:
        """End every call, and write what the log still has to write."""
        await self.rpc.set_serving(False)
        self._servicer.close()  # or streams would use up the grace period
        await self.rpc.stop()
        self._servicer.stop_changes()
        if self.log is not None:
            await self.log.close()


def _budget(settings: ReplaySettings) -> MemoryBudget:
    whole = settings.max_memory_mib * 2**20 or default_budget_bytes(settings.shards, container_limits.memory_bytes())
    return MemoryBudget(whole // 2)


def _empty(settings: ReplaySettings, budget: MemoryBudget) -> ReplayState:
    return ReplayState(
        max_tables=settings.max_tables,
        max_streams=settings.max_streams,
        first_epoch=first_epoch(time.time_ns() // 1_000_000, secrets.randbits(EPOCH_RANDOM_BITS)),
        rng=np.random.default_rng(),
        budget=budget,
        make_blocks=partial(LoggedBlocks, budget=budget) if settings.storage.folder else None,
    )


def _open(settings: ReplaySettings) -> OpenedLog | None:
    """Restore the tables that the folder has; None if they are kept in memory only."""
    storage = settings.storage
    if not storage.folder:
        return None
    opened = open_replay_log(Path(storage.folder), _budget(settings), partial(_empty, settings))
    corruption = opened.corruption
    is_whole = not (corruption.is_any or opened.dropped)
    report = _log.info if is_whole else _log.warning
    report(
        "restored" if opened.segment_sizes else "new log",
        folder=storage.folder,
        tables=len(opened.replay.tables),
        items=opened.items,
        env_steps=opened.replay.env_steps,
        took_s=round(opened.took_s, 3),
        torn_bytes=corruption.torn_bytes,
        corrupt_records=corruption.records,
        missing_records=corruption.missing_records,
        missing_segments=len(corruption.missing_segments),
        dropped_items=opened.dropped,
        **({} if is_whole else {"details": f"stop this service and run: tidemill replay inspect {storage.folder}"}),
    )
    return opened
