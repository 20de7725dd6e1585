"""Takes new priorities back to the replay service without making the training thread wait."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.errors import InvalidArgument, NotFound, Unavailable
from tidemill.logger import LateLogger

Keys = NDArray[np.uint64]
Send = Callable[[Keys, NDArray[np.float64]], object]
"""Sends keys [N] and priorities [N] to the table; bounded in time."""

_MESSAGES_WAITING = 8
_STOP_S = 3.0

_log = LateLogger()
_Message = tuple[int, Keys, ArrayLike | Callable[[], ArrayLike]]


class PrioritySender:
    """Sends priorities in a thread, through a bounded queue.

    Priorities are advice: what cannot be delivered is counted and dropped, never waited for.

    Attributes:
        dropped: Priorities that were not delivered.
    """

    def __init__(self, sends: list[Send]) -> None:
        """Start the thread with the first priorities.

        Args:
            sends: What sends them, one for each table.
        """
        self._sends, self.dropped = sends, 0
        self._queue: queue.Queue[_Message | None] = queue.Queue(_MESSAGES_WAITING)
        self._starting = threading.Lock()  # guards the thread and the count
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def send(self, keys: Keys, priorities: ArrayLike | Callable[[], ArrayLike], table: int = 0) -> None:
        """Hand over the new priorities of a batch's items; never blocks. One whose item has left is skipped.

        Args:
            keys: Keys of the items, as they came with the batch, uint64 [N], or [N, 2] from several servers.
            priorities: At most 1e39 and at least `TableConfig.least_priority`, float64 [N]; or a function that returns
                them, called in the thread, such as one that copies them from a device.
            table: Number of the items' table, see `ReplayBatch.tables`.

        Raises:
            InvalidArgument: There are not as many priorities as keys.
            TidemillError: What ended the thread, such as priorities out of range, or a newer fencing token.
        """
        self.check()
        if not callable(priorities):
            priorities = np.array(priorities, np.float64).reshape(-1)  # a copy: the caller may go on with its array
            if len(priorities) != len(keys):
                raise InvalidArgument(f"priorities has {len(priorities)} entries, must have {len(keys)} like the keys")
        self._start()
        try:
            self._queue.put_nowait((table, keys, priorities))
        except queue.Full:
            self._count_dropped(len(keys))

    def check(self) -> None:
        """Raise what ended the thread."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Send what is waiting, for a bounded time, and end the thread. May be called twice."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            with contextlib.suppress(queue.Full):  # the replay service is frozen; the thread ends with the process
                self._queue.put(None, timeout=_STOP_S)
                thread.join(_STOP_S)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="priorities", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        try:
            while (message := self._queue.get()) is not None:
                self._deliver(*message)
        except BaseException as error:  # re-raised in the thread that sends
            self._error = error

    def _deliver(self, table: int, keys: Keys, priorities: ArrayLike | Callable[[], ArrayLike]) -> None:
        values = np.asarray(priorities() if callable(priorities) else priorities, np.float64)
        try:
            self._sends[table](keys, values)
        except (Unavailable, NotFound, ValueError) as error:  # a service that restarts; gRPC's, of a closed channel
            self._count_dropped(len(keys))
            _log.debug("priorities dropped", reason=str(error))

    def _count_dropped(self, count: int) -> None:
        with self._starting:
            self.dropped += count
