"""The appending side of the replay client: what a writer sends its streams with, to one server or to several."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tidemill.awake_clock import AwakeClock
from tidemill.closing import Closing
from tidemill.errors import FailedPrecondition, InvalidArgument, TidemillError, Unavailable
from tidemill.logger import LateLogger
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.limits import MAX_MESSAGE_BYTES
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.shards.placement import ShardPlacement
from tidemill.replay.shards.probe import ShardProbe
from tidemill.replay.writing.append_call import AppendCall, AppenderState, StreamRestarted
from tidemill.replay.writing.append_message import AppendMessage, messages_of
from tidemill.types import Signature

_OBSERVE_S = 0.1
_WAIT_S = 0.25  # longest wait in which nothing is decided
_LEAVE_S = 1.0
_LEAVE_AGAIN_S = 5.0

_log = LateLogger()


class StreamAppender(Closing):
    """Sends a writer's streams to one server at a time; each chunk and item is stored at most once in all of them.

    An `AppendCall` holds the connection to the present server. With one address there is no other. With several, it is
    the first by rendezvous hash of the writer's name that is alive, see `ShardPlacement`. When the streams move, they
    start again from step 0: the next `append` raises `StreamRestarted`, having taken nothing. What was acknowledged
    stays with the shard that did so. A live shard is left only with nothing unacknowledged. On leaving a dead one, what
    it had not acknowledged is dropped and counted in `dropped_chunks`, and never sent to another: the dead shard may
    have stored it, and come back with it.

    The owner calls every method from one thread; where there are several shards another one probes them.
    """

    def __init__(  # noqa: PLR0913 - each is one decision of the caller
        self,
        addresses: str | Sequence[str] | ShardDirectory,
        actor_id: str,
        env_count: int,
        signature: Signature,
        tables: Sequence[str],
        chunk_length: int,
        *,
        max_in_flight_chunks: int = 256,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        stop: threading.Event | None = None,
        prepare: Callable[[str], None] = lambda _: None,
        state: AppenderState | None = None,
        placement: ShardPlacement | None = None,
    ) -> None:
        """Choose a shard and start connecting in the background.

        Args:
            addresses: Of the server, or of several as `ShardDirectory` takes them; a directory stays the caller's to
                close.
            actor_id: Name of the writer, unique among those that append at the same time.
            env_count: Number of streams, one for each environment.
            signature: Columns of the streams, equal to that of every table named.
            tables: Names of the tables that items may go to.
            chunk_length: Steps of every chunk but a stream's last, 1 .. 1024.
            max_in_flight_chunks: Chunks that may be unacknowledged before `append` waits.
            max_message_bytes: Bytes of the chunks and payloads of one message, unless it has one chunk only.
            stop: Ends every wait when set.
            prepare: Called with the address of a server before each attempt to connect to it, in the thread that does:
                creates the tables, for instance.
            state: Of an appender of the same streams that is gone: its epoch is resumed, and what was not acknowledged
                to it is sent again. With one address only.
            placement: Decides between several servers; None: one with its usual bounds.

        Raises:
            InvalidArgument: There is a state, and more than one address.
        """
        self._stop = stop or threading.Event()
        addresses = (addresses,) if isinstance(addresses, str) else addresses
        self._owns_directory = not isinstance(addresses, ShardDirectory)
        self._directory = addresses if isinstance(addresses, ShardDirectory) else ShardDirectory(addresses)
        self._is_alone = not self._directory.is_sharded
        if state is not None and not self._is_alone:
            if self._owns_directory:
                self._directory.close()
            raise InvalidArgument("state or epoch is given, allowed: neither with several servers")
        self._env_count = env_count
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()  # guards the placement and the probe
        self._placement, self._probe = placement or ShardPlacement(actor_id), ShardProbe()
        self._error: BaseException | None = None

        def open_appender(address: str) -> AppendCall:
            return AppendCall(
                address,
                actor_id,
                env_count,
                signature,
                tables,
                chunk_length,
                max_in_flight_chunks=max_in_flight_chunks,
                stop=self._stop,
                prepare=partial(prepare, address),
                state=state,
            )

        self._open = open_appender
        self._present: tuple[str, str] | None = None  # name and address of the shard written to
        self._appender: AppendCall | None = None
        self._closing: list[threading.Thread] = []
        self._has_moved = False
        self._restarts = self._dropped_chunks = 0
        self._queued_chunks = 0
        self._blocked_s = 0.0
        self._next_leave_s = time.monotonic()
        self._closed = threading.Event()
        self._steer(0.0)
        self._thread = threading.Thread(target=self._observe, name=f"watch-shards-{actor_id}", daemon=True)
        if not self._is_alone:
            self._thread.start()

    def append(self, chunks: Sequence[Chunk], items: Sequence[ItemBatch] = (), timeout_s: float | None = None) -> bool:
        """Queue chunks and the items that end in them; wait while too much is unacknowledged. May move before.

        One call becomes one message, which is stored whole or not at all, unless it is beyond what a message may hold
        (`limits`, `max_message_bytes`): then it becomes several.

        Args:
            chunks: New chunks, those of one stream in order.
            items: At most one batch for each table.
            timeout_s: Longest wait in seconds; None waits as long as it takes.

        Returns:
            True once it is queued; False if `stop` was set while it waited: then nothing was taken.

        Raises:
            StreamRestarted: The streams restart, on another server or because theirs lost them; nothing was taken.
            Unavailable: `timeout_s` passed; nothing was taken.
            InvalidArgument: A chunk names a stream that this actor does not have, or has more bytes with its items than
                the server takes.
            TidemillError: The server refused the streams for good.
        """
        for chunk in chunks:
            if not 0 <= chunk.env_index < self._env_count:
                raise InvalidArgument(f"env_index is {chunk.env_index}, must be 0 .. {self._env_count - 1}")
        return self.append_messages(messages_of(chunks, items, self._max_message_bytes), timeout_s)

    def append_messages(self, messages: Sequence[AppendMessage], timeout_s: float | None = None) -> bool:
        """Queue messages that were packed before, as `append` does with those it packs; see there."""
        is_queued = self._queue(messages, timeout_s)
        if is_queued:
            self._queued_chunks += sum(message.chunks for message in messages)
        return is_queued

    def _queue(self, messages: Sequence[AppendMessage], timeout_s: float | None) -> bool:
        clock = AwakeClock(_LEAVE_S)
        while not self._closed.is_set():
            self._steer(_LEAVE_S if timeout_s is None else min(timeout_s, _LEAVE_S))
            if self._has_moved:
                self._has_moved = False
                raise StreamRestarted(f"this actor's streams continue at replay shard {self._placement.shard}")
            if self._is_alone and self._appender is not None:
                return self._appender.append_messages(messages, timeout_s)
            left_s = None if timeout_s is None else max(timeout_s - clock(), 0.0)
            wait_s = min(_WAIT_S, _WAIT_S if left_s is None else left_s)
            if self._appender is not None:
                try:
                    return self._appender.append_messages(messages, wait_s)
                except Unavailable:
                    if wait_s == left_s:
                        raise
            elif self._stop.wait(wait_s):
                return False
            elif wait_s == left_s:
                raise Unavailable(f"no replay shard is known after {timeout_s:g} s")
        return False

    def state(self) -> AppenderState:
        """Return where it is now. FailedPrecondition: there are several servers."""
        if not self._is_alone or self._appender is None:
            raise FailedPrecondition("a writer to several servers has no state: each server knows only its own part")
        return self._appender.state()

    def has_room(self, chunks: int) -> bool:
        """True if `append` of so many chunks would return or raise without waiting. May change the shard first."""
        self._steer(0.0)
        return self._has_moved or self._closed.is_set() or bool(self._appender and self._appender.has_room(chunks))

    def opened(self, timeout_s: float) -> bool:
        """Wait until a server has named the epoch, as `AppendCall.opened` does; may move to another first."""
        self._steer(_LEAVE_S)
        if self._appender is None:
            self._stop.wait(timeout_s)
            return False
        return self._appender.opened(timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; return False if that took longer than `timeout_s` seconds.

        May leave a dead shard, whose chunks are dropped; the next `append` then raises StreamRestarted.
        """
        clock = AwakeClock(_WAIT_S)
        while True:
            self._steer(0.0)
            left_s = max(timeout_s - clock(), 0.0)
            if self._appender is None or self._appender.flush(min(left_s, _WAIT_S)):
                return True
            if not left_s or self._closed.is_set():
                return False

    def has_settled(self, queued_chunks: int) -> bool:
        """True if the first so many chunks were acknowledged or dropped; otherwise as `flush` without a wait."""
        return self.flush(0.0) or self._queued_chunks - self.unacknowledged_chunks >= queued_chunks

    def stop(self) -> None:
        """End the call and every wait, but do not wait for the threads."""
        self._closed.set()
        if self._appender is not None:
            self._appender.stop()

    def close(self) -> None:
        """End the call and the threads without waiting for acknowledgements. May be called twice."""
        self._closed.set()
        if self._appender is not None:
            self._appender.close()
        for thread in self._closing:
            thread.join(_LEAVE_S)
        if not self._is_alone:
            self._thread.join(_LEAVE_S)
        with self._lock:
            self._probe.close()
        if self._owns_directory:
            self._directory.close()

    @property
    def next_steps(self) -> NDArray[np.int64]:
        """The step of each stream that the present server wants next, int64 [N]; before it answers, by the state."""
        return self._appender.next_steps if self._appender else np.zeros(self._env_count, np.int64)

    @property
    def max_request_bytes(self) -> int:
        """Bytes of the largest message that the shard takes; 0 before it has said so."""
        return self._appender.max_request_bytes if self._appender else 0

    @property
    def last_failure(self) -> TidemillError | None:
        """Why the connection to the shard was lost, while it is."""
        return self._appender.last_failure if self._appender else None

    @property
    def address(self) -> str | None:
        """Address of the shard written to; None while none is known."""
        return self._present[1] if self._present else None

    @property
    def epoch(self) -> int:
        """Epoch of the streams on their present shard; 0 before the first connection to it."""
        return self._appender.epoch if self._appender else 0

    @property
    def superseded_epoch(self) -> int:
        """Epoch of a previous run of this actor on the present shard; 0 if there was none."""
        return self._appender.superseded_epoch if self._appender else 0

    @property
    def env_steps(self) -> int:
        """Agent decisions of all actors in the present shard's first table, as of the newest acknowledgement."""
        return self._appender.env_steps if self._appender else 0

    @property
    def queued_chunks(self) -> int:
        """Chunks that `append` has queued so far."""
        return self._queued_chunks

    @property
    def unacknowledged_chunks(self) -> int:
        """Chunks queued or sent and not yet acknowledged."""
        return self._appender.unacknowledged_chunks if self._appender else 0

    @property
    def blocked_s(self) -> float:
        """Seconds the owner has waited in `append` so far."""
        return self._blocked_s + (self._appender.blocked_s if self._appender else 0.0)

    @property
    def restarts(self) -> int:
        """How often the streams restarted: moves, and losses of a shard that kept nothing."""
        return self._restarts + (self._appender.restarts if self._appender else 0)

    @property
    def dropped_chunks(self) -> int:
        """Chunks dropped because their shard died, or lost the streams, before it acknowledged them."""
        return self._dropped_chunks + (self._appender.dropped_chunks if self._appender else 0)

    def _observe(self) -> None:
        """Probe the shards, in a thread: an actor may be busy for long between two chunks."""
        try:
            while not self._closed.wait(_OBSERVE_S):
                with self._lock:
                    addresses = self._addresses()
                    watched = {name: addresses[name] for name in self._placement.to_probe(addresses)}
                    for shard, asked_s, serves in self._probe.poll(watched, time.monotonic()):
                        self._placement.record_probe(shard, asked_s, answered=serves)
        except BaseException as error:  # raised by the next `append`
            self._error = error

    def _steer(self, wait_s: float) -> None:
        """Move if it is time; waits at most `wait_s` seconds for the acknowledgements of the present shard."""
        if self._is_alone and self._appender is not None:
            return
        if self._error is not None:
            raise self._error
        addresses = self._addresses()
        with self._lock:
            chosen, is_dead = self._placement.choose(addresses), self._placement.is_dead
        if chosen is not None and chosen != self._placement.shard and self._may_leave(is_dead, wait_s):
            self._move(chosen, addresses[chosen])

    def _addresses(self) -> dict[str, str]:
        """Return the shards by name; the present one is kept while it answers, listed or not."""
        addresses, present = dict(self._directory.current), self._present
        if present is not None:
            addresses.setdefault(*present)
        return addresses

    def _may_leave(self, is_dead: bool, wait_s: float) -> bool:
        """True if the present shard can be left now: it is dead, or has acknowledged everything."""
        if self._appender is None or is_dead:
            return True
        if not wait_s:
            return self._appender.flush(0.0)
        if time.monotonic() < self._next_leave_s:
            return False
        self._next_leave_s = time.monotonic() + _LEAVE_AGAIN_S
        return self._appender.flush(wait_s)

    def _move(self, shard: str, address: str) -> None:
        left, old = self._placement.shard, self._appender
        with self._lock:
            self._placement.moved(shard)
            self._present = (shard, address)
        self._appender = self._open(address)
        if old is None:
            return
        self._has_moved = True
        self._restarts += 1 + old.restarts
        self._dropped_chunks += old.dropped_chunks + old.unacknowledged_chunks
        self._blocked_s += old.blocked_s
        _log.warning("moving to another replay shard", shard=shard, left=left, dropped_chunks=old.unacknowledged_chunks)
        thread = threading.Thread(target=old.close, name=f"leave-{left}", daemon=True)
        thread.start()
        self._closing = [*(each for each in self._closing if each.is_alive()), thread]
