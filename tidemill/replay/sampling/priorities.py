"""Writer of new priorities to the replay servers, with or without a wait of the training thread."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.arrays import Keys
from tidemill.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from tidemill.logger import LateLogger
from tidemill.replay.limits import MAX_KEYS
from tidemill.rpc.channel import DEADLINE_S, Backoff
from tidemill.rpc.fork import OwnerProcess

_MESSAGES_WAITING = 8
_STOP_S = 3.0
_LEAST_S = 0.1  # an attempt to set priorities may take

_log = LateLogger()


class Send(Protocol):
    """Sends the priorities [N] of items by key to the servers of one table."""

    def __call__(self, keys: Keys, priorities: NDArray[np.float64], /, *, deadline_s: float | None = None) -> object:
        """Send them; with one server wait for its answer for at most `deadline_s`, None for 10 s."""


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """The new priorities of one update.

    Attributes:
        keys: Keys of the items, as they came with the batch, uint64 [N], or [N, 2] from several servers.
        priorities: What `PrioritySender.send` was given for them.
    """

    keys: Keys
    priorities: Any


@dataclass(frozen=True, slots=True)
class PriorityMessages:
    """How priorities are put into messages.

    Attributes:
        updates: Calls of `PrioritySender.send` that go together, at least 1.
        read: Makes one float64 array of what these calls were given, such as tensors that are on a device; called in
            the sender's thread. They are not written to meanwhile. None: they are arrays, or functions that return
            arrays.
        hold: Whether nothing is sent before `PrioritySender.store`; `take_held` returns what there is.
        fencing_token: Sent to the dataset's own servers with each connection and with the priorities, so that those of
            older learners are refused, see `ParamsClient.acquire_fencing_token`; 0: none.
    """

    updates: int = 1
    read: Callable[[list[Any]], NDArray[np.float64]] | None = None
    hold: bool = False
    fencing_token: int = 0


class PrioritySender:
    """Sends priorities in a thread, through a bounded queue, or with a wait (`store`).

    Priorities are advice: what the thread cannot deliver is counted and dropped, never waited for.

    Attributes:
        dropped: Priorities that were not delivered.
    """

    def __init__(
        self,
        sends: Sequence[Send],
        messages: PriorityMessages | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Start the thread with the first priorities.

        Args:
            sends: What sends them, one for each table.
            messages: How they are put into messages; None for one message each.
            stop: Ends every wait when set.
        """
        self._owner = OwnerProcess("PrioritySender")
        self._sends, self._messages, self.dropped = tuple(sends), messages or PriorityMessages(), 0
        self._stop, self._closed = stop or threading.Event(), threading.Event()
        self._queue: queue.Queue[tuple[int, list[Update]] | None] = queue.Queue(_MESSAGES_WAITING)
        self._lock = threading.Lock()  # guards the three below and the count
        self._collected: list[list[Update]] = [[] for _ in self._sends]
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def send(self, keys: Keys, priorities: ArrayLike | Callable[[], ArrayLike], table: int | None = None) -> None:
        """Hand over the new priorities of a batch's items; never blocks. One whose item has left is skipped.

        After `close` they count as dropped.

        Args:
            keys: Keys of the items, as they came with the batch, uint64 [N], or [N, 2] from several servers.
            priorities: At most 1e39 and at least `TableConfig.least_priority`, float64 [N]; or a function that returns
                them, called in the thread, such as one that copies them from a device; or what
                `PriorityMessages.read` takes.
            table: Number of the items' table, see `ReplayBatch.tables`; None for the only one.

        Raises:
            InvalidArgument: There are not as many priorities as keys, or there are several tables and `table` is None.
            TidemillError: What ended the thread, such as priorities out of range, or a newer fencing token.
        """
        self.check()
        table = self._place_of(table)
        if self._messages.read is None and not callable(priorities):
            priorities = np.array(priorities, np.float64).reshape(-1)  # a copy: the caller may change its array
            if len(priorities) != len(keys):
                raise InvalidArgument(f"priorities has {len(priorities)} entries, must have {len(keys)} like the keys")
        with self._lock:
            self._collected[table].append(Update(keys, priorities))
            is_full = self._closed.is_set() or len(self._collected[table]) >= self._messages.updates
        if is_full and not self._messages.hold:
            self._hand_over(table)

    def flush(self) -> None:
        """Send what waits for more to go with it, unless it is held; never blocks. Raises what ended the thread."""
        self.check()
        self._hand_over_all()

    def store(
        self, keys: Keys, priorities: NDArray[np.float64], table: int | None = None, timeout_s: float | None = None
    ) -> None:
        """Set priorities and wait until the server has them, also while it is away; of several servers wait for none.

        Args:
            keys: As of `send`.
            priorities: As of `send`, float64 [N].
            table: As of `send`.
            timeout_s: Longest wait; None for no end but `close` and `stop`.

        Raises:
            InvalidArgument: A priority is out of range, or `table` is None as in `send`; none was set.
            Unavailable: The server did not answer in time, or `stop` was set. Another attempt may succeed.
            NotFound: The server did not have the table in time.
            FailedPrecondition: The sender was closed, or the table has seen a newer fencing token.
        """
        self._owner.check()
        table = self._place_of(table)
        until_s, pause = math.inf if timeout_s is None else time.monotonic() + timeout_s, Backoff(limit_s=1.0)
        while True:
            left_s = until_s - time.monotonic()
            try:
                return self._set(table, keys, priorities, deadline_s=min(max(left_s, _LEAST_S), DEADLINE_S))
            except (Unavailable, NotFound):  # one that is restarted in memory has no table before a client creates it
                if not self._closed.is_set() and (left_s <= 0 or self._stop.wait(min(pause.next_s(), left_s))):
                    raise
            except ValueError:  # gRPC's, of a channel that another thread has closed
                if not self._closed.is_set():
                    raise
            if self._closed.is_set():
                raise FailedPrecondition("the dataset was closed while priorities waited for the server")

    def held(self, table: int = 0) -> list[Update]:
        """The updates handed over and not yet sent, in order."""
        with self._lock:
            return list(self._collected[table])

    def take_held(self, table: int = 0) -> list[Update]:
        """Remove and return the updates handed over and not yet sent, in order."""
        with self._lock:
            held, self._collected[table] = self._collected[table], []
        return held

    def check(self) -> None:
        """Raise what ended the thread, and FailedPrecondition in a forked process, which lacks it."""
        self._owner.check()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Send what is waiting and not held, for a bounded time, and end the thread; the rest counts as dropped.

        May be called twice.
        """
        if not self._owner.is_here:
            return
        self._hand_over_all()
        with self._lock:
            self._closed.set()
        self._hand_over_all()  # what another thread has sent meanwhile is dropped
        thread = self._thread
        if thread is not None and thread.is_alive():
            with contextlib.suppress(queue.Full):  # the replay service is frozen; the thread ends with the process
                self._queue.put(None, timeout=_STOP_S)
                thread.join(_STOP_S)
        self._drop_queued()

    def _place_of(self, table: int | None) -> int:
        """Return the place of a table, that of the only one for None. InvalidArgument: there are several."""
        if table is None and len(self._sends) > 1:
            raise InvalidArgument(
                f"table is None, must be 0 .. {len(self._sends) - 1} with several tables: call once for each number in "
                "`batch.tables`, with the items of that table"
            )
        return table or 0

    def _hand_over_all(self) -> None:
        for table in range(len(self._sends) if not self._messages.hold else 0):
            self._hand_over(table)

    def _hand_over(self, table: int) -> None:
        """Queue what was collected for the thread, or drop it: the queue is full, or no thread takes it."""
        if not (updates := self.take_held(table)):
            return
        with self._lock:
            may_queue = not self._closed.is_set() and not self._queue.full() and self._has_thread()
            if may_queue:
                self._queue.put_nowait((table, updates))
        if not may_queue:
            self._count_dropped(updates)

    def _has_thread(self) -> bool:
        """Start the thread if it was not; False if none can be started: there are too many, or Python ends."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="priorities", daemon=True)
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread
        return self._thread is not None

    def _drop_queued(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                if (message := self._queue.get_nowait()) is not None:
                    self._count_dropped(message[1])
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)  # the thread may still be in a call

    def _run(self) -> None:
        try:
            while (message := self._queue.get()) is not None:
                self._deliver(*message)
        except BaseException as error:  # re-raised in the thread that sends
            self._error = error

    def _deliver(self, table: int, updates: list[Update]) -> None:
        parts = [update.priorities for update in updates]
        priorities = self._messages.read(parts) if self._messages.read is not None else _read(parts)
        try:
            self._set(table, np.concatenate([update.keys for update in updates]), priorities)
        except (Unavailable, NotFound, ValueError) as error:  # a service that restarts; gRPC's, of a closed channel
            self._count_dropped(updates)
            _log.debug("priorities dropped", reason=str(error))

    def _set(self, table: int, keys: Keys, priorities: NDArray[np.float64], *, deadline_s: float | None = None) -> None:
        for part in in_messages(keys, priorities):
            self._sends[table](*part, deadline_s=deadline_s)

    def _count_dropped(self, updates: list[Update]) -> None:
        with self._lock:
            self.dropped += sum(len(update.keys) for update in updates)


def in_messages(keys: Keys, priorities: NDArray[np.float64]) -> Iterator[tuple[Keys, NDArray[np.float64]]]:
    """Yield keys and priorities, as many at a time as a message may have."""
    for start in range(0, len(keys), MAX_KEYS):
        yield keys[start : start + MAX_KEYS], priorities[start : start + MAX_KEYS]


def _read(parts: list[Any]) -> NDArray[np.float64]:
    """Return arrays, or what functions return, as one array."""
    return np.concatenate([np.asarray(part() if callable(part) else part, np.float64).reshape(-1) for part in parts])
