"""Waits for the log: appends for room in its queue, acknowledgements for the disk."""

from __future__ import annotations

import asyncio
import errno
import heapq
import itertools
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeVar
from weakref import WeakKeyDictionary

from tidemill.replay.batch import StoredSteps
from tidemill.services.replay.log.writer import Progress
from tidemill.services.replay.tables.table import Table


class Commits:
    """Follows the log's writer, within the event loop."""

    def __init__(
        self,
        *,
        wait_for_sync: bool,
        max_pending_bytes: int,
        env_steps: Mapping[Table, StoredSteps] | None = None,
        reached: int = 0,
    ) -> None:
        """Begin with nothing submitted.

        Args:
            env_steps: Agent decisions of each table that are stored; None for no table.
            reached: Newest record that the disk has.
            wait_for_sync: Whether a record counts as durable once it is synced, not just written.
            max_pending_bytes: Bytes that may be submitted and not written before `room` waits.
        """
        self._wait_for_sync, self._max_pending_bytes = wait_for_sync, max_pending_bytes
        self.progress = Progress(written=reached, synced=reached)
        self.env_steps = WeakKeyDictionary[Table, StoredSteps](env_steps or {})  # of tables not dropped
        self.pending_bytes = 0
        self._pending: deque[tuple[int, int]] = deque()  # sequence number and size
        self._decisions: deque[tuple[int, Mapping[Table, StoredSteps]]] = deque()  # sequence number and `env_steps`
        self._waiting: dict[bool, list[tuple[int, int, asyncio.Future[None]]]] = {True: [], False: []}  # for a sync?
        self._impatient: list[asyncio.Future[None]] = []  # those that do not wait for a full disk
        self._ended: OSError | None = None
        self._order = itertools.count()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def submitted(self, sequence: int, size_bytes: int) -> None:
        """Count a record on its way to the writer."""
        self._pending.append((sequence, size_bytes))
        self.pending_bytes += size_bytes
        if self.pending_bytes >= self._max_pending_bytes:
            self._has_room.clear()

    def stored(self, sequence: int, env_steps: Mapping[Table, StoredSteps]) -> None:
        """Note how many agent decisions tables have once a record is durable."""
        self._decisions.append((sequence, env_steps))

    def progressed(self, progress: Progress) -> None:
        """Note how far the writer is and wake the calls that waited for it."""
        written = max(progress.written, self.progress.written)  # two threads report, and may overtake each other
        synced = max(progress.synced, self.progress.synced)
        self.progress = progress = Progress(written, synced, progress.full, progress.error)
        while self._pending and self._pending[0][0] <= progress.written:
            self.pending_bytes -= self._pending.popleft()[1]
        if self.pending_bytes < self._max_pending_bytes:
            self._has_room.set()
        durable = progress.synced if self._wait_for_sync else progress.written
        while self._decisions and self._decisions[0][0] <= durable:
            self.env_steps.update(self._decisions.popleft()[1])
        self._release(self._waiting[False], progress.written)
        self._release(self._waiting[True], progress.synced)
        if progress.full:
            self._refuse(_disk_full())

    def end(self, error: OSError) -> None:
        """Note that nothing more will be written, for which `kept` has an error."""
        self._ended = error
        self._refuse(error)

    def _refuse(self, error: OSError) -> None:
        impatient, self._impatient = self._impatient, []
        for future in impatient:
            if not future.done():
                future.set_exception(error)

    @property
    def has_room(self) -> bool:
        """Whether the writer's queue has room for another record."""
        return self._has_room.is_set()

    async def room(self) -> None:
        """Wait until the writer's queue has room for another record."""
        await self._has_room.wait()

    async def written(self, sequence: int) -> None:
        """Wait until a record and all before it are written."""
        if sequence > self.progress.written:
            await self._future(False, sequence)

    async def kept(self, sequence: int) -> int:
        """Wait until a record and all before it are written, as long as the disk takes them.

        Returns:
            The record up to which everything is synced.

        Raises:
            OSError: The disk is full, or the writer has ended.
        """
        if sequence > self.progress.written:
            if self._ended is not None:
                raise self._ended
            if self.progress.full:
                raise _disk_full()
            self._impatient = [future for future in self._impatient if not future.done()]
            self._impatient.append(self._future(False, sequence))
            await self._impatient[-1]
        return self.progress.synced

    async def durable(self, sequence: int) -> None:
        """Wait until a record and all before it may be acknowledged."""
        reached = self.progress.synced if self._wait_for_sync else self.progress.written
        if sequence > reached:
            await self._future(self._wait_for_sync, sequence)

    def _future(self, for_sync: bool, sequence: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting[for_sync], (sequence, next(self._order), future))
        return future

    @staticmethod
    def _release(waiting: list[tuple[int, int, asyncio.Future[None]]], reached: int) -> None:
        while waiting and waiting[0][0] <= reached:
            future = heapq.heappop(waiting)[2]
            if not future.done():
                future.set_result(None)


def _disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


T = TypeVar("T")

_MAX_ANSWERS = 256


async def acknowledge_in_order(
    answers: AsyncIterator[tuple[int, T]], durable: Callable[[int], Awaitable[None]]
) -> AsyncIterator[T]:
    """Yield answers once they may go, while more messages are stored.

    Args:
        answers: Stores a message at each turn; yields the record that has it and the answer to it.
        durable: Waits until a record may be acknowledged.

    Raises:
        Exception: what `answers` raised, after the answers before it.
    """
    waiting: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(_MAX_ANSWERS)

    async def store() -> None:
        try:
            async for entry in answers:
                await waiting.put(entry)
        except Exception as error:
            await waiting.put(error)
        else:
            await waiting.put(None)

    storing = asyncio.create_task(store())
    try:
        while (entry := await waiting.get()) is not None:
            if isinstance(entry, Exception):
                raise entry
            await durable(entry[0])
            yield entry[1]
    finally:
        storing.cancel()
