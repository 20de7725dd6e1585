"""Batches of one table of one server that their caller numbers: the same number gives the same batch, always."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import FatalError
from tidemill.replay.batch import SampledBatch
from tidemill.replay.limits import MAX_DRAWS
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.sample_call import SampleCall
from tidemill.replay.sampling.schedule import Schedule
from tidemill.replay.sampling.shard import ShardReport
from tidemill.replay.table_config import TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import unpack_sample


class SeededSampleStream:
    """Draws batches number `first`, `first + 1` and so on, ahead of their use; for a run in lock-step.

    When the call breaks, the batches that were not taken are drawn again with the seeds they had. The table must not
    change while they are on their way: who writes to it has to know that all of a step count are taken. `take` and
    `again` are called from one thread.
    """

    priorities_dropped = unknown_keys = 0  # the caller sends priorities itself

    def __init__(
        self,
        address: str,
        table: TableConfig,
        batch_size: int,
        schedule: Schedule,
        *,
        max_in_flight_batches: int,
        mirror: TableMirror | None = None,
    ) -> None:
        """Start connecting in the background.

        Args:
            address: `host:port` or `unix:///path` of the replay server.
            table: The table, which exists.
            batch_size: Items in each batch.
            schedule: How the batches are drawn.
            max_in_flight_batches: Batches that may be asked for before they are taken, 1 to 1,024.
            mirror: Keeps the rows that come; batches are then without blocks.
        """
        assert 1 <= max_in_flight_batches <= MAX_DRAWS
        self._schedule, self._batch_size, self._mirror = schedule, batch_size, mirror
        self._max_in_flight = max_in_flight_batches
        self._changed = threading.Condition()  # guards everything below
        self._ready: deque[SampledBatch] = deque()
        self._next = self._asked = schedule.first  # of the batches to take and to ask for
        self._is_connected = self._is_closed = False
        self._calls = 0
        self._error: BaseException | None = None
        self._table = table.name
        size = mirror.size if mirror is not None else None
        self._call = SampleCall(table.name, address, table, batch_size, False, self, size)
        self._call.start()

    def take(self, timeout_s: float) -> SampledBatch | None:
        """Return the next batch, or None if it takes longer than `timeout_s` seconds or the stream was closed.

        Raises:
            TidemillError: The server refused for good, or has lost the table.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._error or self._is_closed, timeout_s)
            if self._is_closed:
                return None
            if self._error is not None:
                raise self._error
            if not self._ready:
                return None
            self._next += 1
            self._ask()
            return self._ready.popleft()

    def again(self) -> None:
        """Draw the batch that was taken last once more, and then those after it."""
        with self._changed:
            self._next -= 1
            self._is_connected = False
            self._ready.clear()
        self._call.cut()

    def update_priorities(
        self,
        keys: NDArray[np.uint64],
        priorities: NDArray[np.float64],
        fencing_token: int = 0,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Set the priorities [N] of items by key [N], see `ReplayClient.update_priorities`."""
        self._call.client.update_priorities(self._table, keys, priorities, fencing_token, deadline_s=deadline_s)

    def delete_items(self, keys: NDArray[np.uint64]) -> None:
        """Refuse: a corrupt item ends a run in lock-step.

        Raises:
            FatalError: Always.
        """
        raise FatalError(
            f"{len(keys)} items cannot be decoded: what follows would not be what another run with this seed gives"
        )

    def shards(self) -> tuple[ShardReport, ...]:
        """Return nothing: there are no shards."""
        return ()

    @property
    def reconnects(self) -> int:
        """How often the call was lost and opened again."""
        return max(self._calls - 1, 0)

    def close(self) -> None:
        """End the call and the thread, and every wait, within a bounded time. May be called twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._call.close()

    def opened(self, call: SampleCall, created: bool) -> None:
        """Ask for everything that was not taken (`SampleCallOwner`)."""
        if created:
            raise FatalError(
                "the replay service has lost its table: a run in lock-step needs one with a log (replay.storage.folder)"
            )
        self._schedule.prepare(call.client)
        with self._changed:
            self._is_connected = True
            self._calls += 1
            self._asked = self._next
            self._ask()

    def answered(self, _call: SampleCall, answer: pb.SampleResponse) -> None:
        """Keep a batch (`SampleCallOwner`)."""
        with self._changed:
            if not self._is_connected:
                return  # it will be drawn again
        batch = unpack_sample(answer, mirrored=self._mirror is not None)
        if self._mirror is not None:
            batch = self._mirror.keep(batch)
        with self._changed:
            if self._is_connected:
                self._ready.append(batch)
                self._changed.notify_all()

    def lost(self, _call: SampleCall) -> None:
        """Forget the batches that were not taken: the next call draws them again (`SampleCallOwner`)."""
        with self._changed:
            self._is_connected = False
            self._ready.clear()

    def failed(self, error: BaseException) -> None:
        """Keep what ended the calls for good; `take` raises it (`SampleCallOwner`)."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _ask(self) -> None:
        if not self._is_connected:
            return
        count = self._next + self._max_in_flight - self._asked
        draws = []
        for number in range(self._asked, self._asked + count):
            draw = self._schedule.draw_of(number)
            draws.append(pb.Draw(items=self._batch_size, seed=draw.seed, at_step_count=draw.at_step_count))
        self._asked += count
        if draws:
            self._call.send(pb.SampleRequest(draws=draws))
