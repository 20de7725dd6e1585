"""The transport of appending: an `Append` call to one server, opened again when it breaks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.awake_clock import AwakeClock
from tidemill.errors import FailedPrecondition, Reason, TidemillError, Unavailable
from tidemill.logger import LateLogger
from tidemill.replay import wire
from tidemill.replay.reconnecting_call import ReconnectingCall
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.writing.append_message import AppendMessage
from tidemill.types import Signature

_POLL_S = 0.2
"""How soon a waiting owner notices that it shall stop."""

_log = LateLogger()


class StreamRestarted(FailedPrecondition):
    """The server lost the streams; the owner continues with step 0 of each."""


class AppendOverdue(Unavailable):
    """The server acknowledged too little to queue more within `timeout_s`; nothing was taken."""


@dataclass(frozen=True, slots=True)
class AppenderState:
    """Where an appender is, so that another one can continue there.

    Attributes:
        epoch: Epoch of the streams; 0 if the server has not named one.
        unacknowledged: The messages that were not acknowledged, in order, as bytes.
        next_steps: The step of each stream that follows what is acknowledged and these messages; empty if not known.
    """

    epoch: int
    unacknowledged: tuple[bytes, ...]
    next_steps: tuple[int, ...] = ()


class AppendCall:
    """Sends the messages of one actor's streams; each is stored exactly once.

    A `ReconnectingCall` holds the connection. When it is opened again, the server's first answer names the steps that
    are missing, and only those are sent again. The owner calls every method from one thread.

    When the server no longer knows the streams (one that keeps its tables in memory was restarted), or has lost
    acknowledged steps of them (by a power failure), everything unacknowledged is dropped and counted in
    `dropped_chunks`, `restarts` grows, and the next `append` raises `StreamRestarted` once, having taken nothing: from
    then on the owner numbers the steps of every stream from 0.

    Errors that a retry cannot cure (a malformed chunk, a signature that is not the table's, another actor of the
    same name) are raised by the next call of any method.
    """

    def __init__(  # noqa: PLR0913 - each is one decision of the caller
        self,
        address: str,
        actor_id: str,
        env_count: int,
        signature: Signature,
        tables: Sequence[str],
        chunk_length: int,
        *,
        max_in_flight_chunks: int = 256,
        stop: threading.Event | None = None,
        prepare: Callable[[], None] = lambda: None,
        state: AppenderState | None = None,
    ) -> None:
        """Start connecting in the background; does not wait for the server or for the tables to exist.

        Args:
            address: Address of the replay service.
            actor_id: Name of the actor, unique among those that append at the same time.
            env_count: Number of streams, one for each environment.
            signature: Columns of the streams, equal to that of every table named.
            tables: Names of the tables that items may go to.
            chunk_length: Steps of every chunk but a stream's last, 1 .. 1024.
            max_in_flight_chunks: Chunks that may be unacknowledged before `append` waits.
            stop: Ends every wait when set.
            prepare: Called before each attempt to connect, in the thread that does: creates the tables, for instance.
            state: Of an appender of the same streams that is gone: its epoch is resumed, and what was not acknowledged
                to it is sent again.
        """
        columns = wire.pack_signature(signature)
        opening = pb.AppendOpen(
            actor_id=actor_id, env_count=env_count, tables=tables, signature=columns, chunk_length=chunk_length
        )
        self._open = pb.AppendRequest(open=opening)
        self._env_count = env_count
        self._limit, self._stop = max_in_flight_chunks, stop or threading.Event()
        self._max_request_bytes = 0
        self._changed = threading.Condition()  # guards everything below
        self._is_open = False  # the server has named the epoch
        self._connected = self._restarted = False  # connected: the present call is given all that is pending
        self._superseded_epoch = self._env_steps = self._restarts = self._dropped_chunks = 0
        self._blocked_s, self._blocked_since = 0.0, float("inf")
        self._error: BaseException | None = None
        self._take(state or AppenderState(0, ()))
        self._call = ReconnectingCall[pb.AppendRequest, pb.AppendResponse](
            f"append-{actor_id}",
            address,
            lambda stub: stub.Append,
            opened=self._resume,
            answered=self._acknowledge,
            lost=self._disconnect,
            failed=self._fail,
            prepare=prepare,
        )
        self._call.start()

    def append_messages(self, messages: Sequence[AppendMessage], timeout_s: float | None = None) -> bool:
        """Queue messages; wait while too much is unacknowledged, see `StreamAppender.append`."""
        for message in messages:
            message.check_size(self._max_request_bytes)
        chunks = sum(message.chunks for message in messages)
        with self._changed:
            if not self._wait_for_room(chunks, timeout_s):
                return False
            self._pending.extend(messages)
            self._pending_chunks += chunks
            if self._connected:
                self._send(messages)
        return True

    def has_room(self, chunks: int) -> bool:
        """True if `append` with this number of chunks would return or raise without waiting."""
        with self._changed:
            is_over = self._error or self._restarted or self._stop.is_set() or self._call.closed.is_set()
            return bool(is_over) or self._fits(chunks)

    def opened(self, timeout_s: float) -> bool:
        """Wait until the server has named the epoch; return False if it has not after `timeout_s` seconds.

        Raises:
            TidemillError: the server refused the streams for good.
        """
        closed = self._call.closed
        with self._changed:
            is_open = self._changed.wait_for(lambda: self._is_open or self._error or closed.is_set(), timeout_s)
            self._raise()
            return bool(is_open) and self._is_open

    def state(self) -> AppenderState:
        """Return where it is now."""
        with self._changed:
            return AppenderState(self._epoch, tuple(m.request.SerializeToString() for m in self._pending))

    @property
    def next_steps(self) -> NDArray[np.int64]:
        """First step of each stream that is not acknowledged, int64 [N]; before the server answers, by the state."""
        return self._next_steps

    @property
    def max_request_bytes(self) -> int:
        """Bytes of the largest message that the server takes; 0 before it has said so."""
        return self._max_request_bytes

    @property
    def last_failure(self) -> TidemillError | None:
        """Why the connection was lost, while it is."""
        return self._call.last_failure

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; return False after `timeout_s` seconds, or if it is closed before."""
        closed = self._call.closed
        with self._changed:
            self._changed.wait_for(lambda: not self._pending or self._error or closed.is_set(), timeout_s)
            self._raise()
            return not self._pending

    def stop(self) -> None:
        """End the call and every wait, but do not wait for the thread."""
        with self._changed:
            self._call.closed.set()
            self._changed.notify_all()
        self._call.stop()

    def close(self) -> None:
        """End the call and the thread without waiting for acknowledgements. May be called twice."""
        self.stop()
        self._call.close()
        with self._changed:
            self._give_up_spans()

    @property
    def epoch(self) -> int:
        """Epoch of the streams; 0 before the first connection."""
        return self._epoch

    @property
    def superseded_epoch(self) -> int:
        """Epoch of a previous run of this actor that the first epoch took the place of; 0 if there was none."""
        return self._superseded_epoch

    @property
    def env_steps(self) -> int:
        """Agent decisions of all actors in the first of the tables, as of the newest acknowledgement."""
        return self._env_steps

    @property
    def unacknowledged_chunks(self) -> int:
        """Chunks queued or sent and not yet acknowledged."""
        return self._pending_chunks

    @property
    def blocked_s(self) -> float:
        """Seconds the owner has waited in `append` so far, a wait that has not ended included."""
        with self._changed:
            return self._blocked_s + max(0.0, time.monotonic() - self._blocked_since)

    @property
    def restarts(self) -> int:
        """How often the server lost the streams."""
        return self._restarts

    @property
    def dropped_chunks(self) -> int:
        """Chunks dropped because the server lost the streams before it acknowledged them."""
        return self._dropped_chunks

    def _take(self, state: AppenderState) -> None:
        self._epoch = state.epoch
        self._pending = deque(map(AppendMessage.parse, state.unacknowledged))  # in order
        self._pending_chunks = sum(message.chunks for message in self._pending)
        self._next_steps = np.array(state.next_steps or [0] * self._env_count, dtype=np.int64)
        for message in reversed(self._pending):
            for chunk in reversed(message.request.data.chunks):
                self._next_steps[chunk.env_index] = chunk.first_step

    def _wait_for_room(self, chunks: int, timeout_s: float | None) -> bool:
        started = self._blocked_since = time.monotonic()
        clock = AwakeClock(_POLL_S)
        try:
            while True:
                self._raise()
                if self._restarted:
                    self._restarted = False
                    raise StreamRestarted("the replay service no longer knows this actor's streams")
                if self._fits(chunks):
                    return True
                if self._stop.is_set() or self._call.closed.is_set():
                    return False
                waited_s = clock()
                if timeout_s is not None and waited_s >= timeout_s:
                    raise AppendOverdue(
                        f"the replay service did not acknowledge {self._pending_chunks} chunks within {timeout_s:g} s"
                    )
                self._changed.wait(_POLL_S if timeout_s is None else min(_POLL_S, timeout_s - waited_s))
        finally:
            self._blocked_s, self._blocked_since = self._blocked_s + time.monotonic() - started, float("inf")

    def _fits(self, chunks: int) -> bool:
        """True if this number of chunks may be queued. More than the limit are sent alone, or they never could be."""
        return not self._pending or self._pending_chunks + chunks <= self._limit

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, TidemillError) and error.reason is Reason.EPOCH_SUPERSEDED:
            # its owner may call nothing but `close` from now on, which raises nothing
            _log.warning(
                "another writer took over the name of this one, which stores nothing more",
                name=self._open.open.actor_id,
                unacknowledged_chunks=self._pending_chunks,
            )
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _resume(self) -> None:
        """Name the streams; the answer says what of them is to be sent."""
        with self._changed:
            self._open.open.epoch = self._epoch
        self._call.send(self._open)

    def _disconnect(self) -> None:
        with self._changed:
            self._connected = False

    def _send(self, messages: Iterable[AppendMessage]) -> None:
        for message in messages:
            self._call.send(message.request)

    def _acknowledge(self, response: pb.AppendResponse) -> None:
        next_steps = np.array(response.next_steps, dtype=np.int64)
        with self._changed:
            if not self._connected and self._has_lost(response.epoch, next_steps):
                self._begin_again()
                return
            if self._epoch not in (0, response.epoch):
                self._drop_streams()
            if self._epoch == 0 and not self._restarts:
                self._superseded_epoch = response.superseded_epoch
            self._epoch, self._env_steps, self._next_steps = response.epoch, response.env_steps, next_steps
            self._is_open = True
            self._max_request_bytes = response.max_request_bytes
            while self._pending and self._pending[0].is_stored(next_steps):
                message = self._pending.popleft()
                self._pending_chunks -= message.chunks
                message.ended(stored=True)
            if not self._connected:
                self._connected = True
                self._send(self._pending)
            self._changed.notify_all()

    def _has_lost(self, epoch: int, next_steps: NDArray[np.int64]) -> bool:
        """True if the first answer of a call shows that the server has lost steps that it had acknowledged."""
        return self._epoch in (0, epoch) and bool((next_steps < self._next_steps).any())

    def _begin_again(self) -> None:
        """Open another call for a new epoch: in this one, whatever comes next would leave a gap."""
        self._drop_streams()
        self._epoch, self._next_steps, self._is_open = 0, np.zeros_like(self._next_steps), False
        self._changed.notify_all()
        self._call.cut()

    def _drop_streams(self) -> None:
        self._restarts += 1
        self._dropped_chunks += self._pending_chunks
        self._give_up_spans()
        self._pending.clear()
        self._pending_chunks, self._restarted = 0, True

    def _give_up_spans(self) -> None:
        for message in self._pending:
            message.ended(stored=False)
