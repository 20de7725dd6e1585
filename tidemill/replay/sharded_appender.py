"""The appending side of the replay client over several shards: what an actor writes its streams with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import structlog

from tidemill.errors import Unavailable
from tidemill.replay.append import Appender, StreamRestarted
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.directory import ShardDirectory
from tidemill.replay.home import Home
from tidemill.replay.shard_watch import ShardWatch
from tidemill.types import Signature

_STEER_S = 0.1
_WAIT_S = 0.25  # longest wait in which nothing is decided
_LEAVE_S = 1.0
_LEAVE_AGAIN_S = 5.0

_log = structlog.get_logger()


class ShardedAppender:
    """Sends one actor's streams to one shard at a time; each chunk and item is stored at most once in all of them.

    The shard is the first by rendezvous hash of the actor's name that is alive, see `Home`. When the actor moves, its
    streams begin anew: the next `append` raises `StreamRestarted`, having taken nothing. What was acknowledged
    stays with the shard that did so. A shard that is only gone back from is left with nothing unacknowledged. On
    leaving a dead one, what it had not acknowledged is dropped and counted in `dropped_chunks`, and never sent to
    another: the dead shard may have stored it, and come back with it. Used by one thread.
    """

    def __init__(
        self,
        directory: ShardDirectory,
        actor_id: str,
        env_count: int,
        signature: Signature,
        tables: Sequence[str],
        chunk_length: int,
        *,
        max_unacknowledged_chunks: int = 256,
        stop: threading.Event | None = None,
    ) -> None:
        """Choose a shard and start connecting in the background.

        Args:
            directory: The shards; stays the caller's to close.
            actor_id: Name of the actor, unique among those that append at the same time.
            env_count: Number of streams, one for each environment.
            signature: Columns of the streams, equal to that of every table named.
            tables: Names of the tables that items may go to.
            chunk_length: Steps of every chunk but a stream's last, 1 .. 1024.
            max_unacknowledged_chunks: Chunks that may be unacknowledged before `append` waits.
            stop: Ends every wait when set.
        """
        self._directory, self._stop = directory, stop or threading.Event()
        self._home, self._watch = Home(actor_id), ShardWatch()
        self._open: Callable[[str], Appender] = partial(
            Appender,
            actor_id=actor_id,
            env_count=env_count,
            signature=signature,
            tables=tables,
            chunk_length=chunk_length,
            max_unacknowledged_chunks=max_unacknowledged_chunks,
            stop=self._stop,
        )
        self._address = ""
        self._appender: Appender | None = None
        self._closing: list[threading.Thread] = []
        self._closed = self._has_moved = False
        self._moves = self._restarts = self._dropped_chunks = 0
        self._blocked_s = 0.0
        self._next_steer_s = self._next_leave_s = time.monotonic()
        self._steer()

    def append(self, chunks: Sequence[Chunk], items: Sequence[ItemBatch] = (), timeout_s: float | None = None) -> bool:
        """Queue chunks and the items that end in them, as `Appender.append` does; may move to another shard first.

        Raises:
            StreamRestarted: the streams begin anew, on another shard or because theirs lost them; nothing was taken.
            Unavailable: `timeout_s` passed; nothing was taken.
            TidemillError: as `Appender.append` raises.
        """
        started_s = time.monotonic()
        while not self._closed:
            self._steer()
            if self._has_moved:
                self._has_moved = False
                raise StreamRestarted(f"this actor's streams go on at replay shard {self._home.shard}")
            waited_s = time.monotonic() - started_s
            left_s = _WAIT_S if timeout_s is None else min(_WAIT_S, max(timeout_s - waited_s, 0.0))
            if self._appender is not None:
                try:
                    return self._appender.append(chunks, items, timeout_s=left_s)
                except Unavailable:
                    if timeout_s is not None and waited_s >= timeout_s:
                        raise
            elif self._stop.wait(left_s):
                return False
            elif timeout_s is not None and waited_s >= timeout_s:
                raise Unavailable(f"no replay shard is known after {timeout_s:g} s")
        return False

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; return False if that took longer than `timeout_s` seconds."""
        return self._appender is None or self._appender.flush(timeout_s)

    def close(self) -> None:
        """End the call and the threads without waiting for acknowledgements. May be called twice."""
        self._closed = True
        if self._appender is not None:
            self._appender.close()
        for thread in self._closing:
            thread.join(_LEAVE_S)
        self._watch.close()

    @property
    def shard(self) -> str | None:
        """Name of the shard written to; None while none is known."""
        return self._home.shard

    @property
    def epoch(self) -> int:
        """Epoch of the streams on their present shard; 0 before the first connection to it."""
        return self._appender.epoch if self._appender else 0

    @property
    def env_steps(self) -> int:
        """Agent decisions stored by the present shard, of all actors, as of the newest acknowledgement."""
        return self._appender.env_steps if self._appender else 0

    @property
    def unacknowledged_chunks(self) -> int:
        """Chunks queued or sent and not yet acknowledged."""
        return self._appender.unacknowledged_chunks if self._appender else 0

    @property
    def blocked_s(self) -> float:
        """Seconds the owner has waited in `append` so far."""
        return self._blocked_s + (self._appender.blocked_s if self._appender else 0.0)

    @property
    def moves(self) -> int:
        """How often the streams went on at another shard."""
        return self._moves

    @property
    def restarts(self) -> int:
        """How often the streams began anew: moves, and losses of a shard that kept nothing."""
        return self._moves + self._restarts + (self._appender.restarts if self._appender else 0)

    @property
    def dropped_chunks(self) -> int:
        """Chunks dropped because their shard died, or lost the streams, before it acknowledged them."""
        return self._dropped_chunks + (self._appender.dropped_chunks if self._appender else 0)

    @property
    def connected(self) -> bool:
        """Whether the shard has accepted the streams on the present connection."""
        return self._appender is not None and self._appender.connected

    def _steer(self) -> None:
        """Take in what is known of the shards, and move if it is time."""
        now_s = time.monotonic()
        if now_s < self._next_steer_s:
            return
        self._next_steer_s = now_s + _STEER_S
        addresses = dict(self._directory.current)
        if self._home.shard is not None:  # kept while it answers, listed or not
            addresses.setdefault(self._home.shard, self._address)
        watched = {name: addresses[name] for name in self._home.watched(addresses)}
        for finding in self._watch.poll(watched, now_s):
            self._home.heard(finding.shard, finding.asked_s, answered=finding.serves)
        chosen = self._home.choose(addresses)
        if chosen is not None and chosen != self._home.shard and self._may_leave(now_s):
            self._move(chosen, addresses[chosen])

    def _may_leave(self, now_s: float) -> bool:
        """Return whether the present shard can be left now: it is dead, or has acknowledged everything."""
        if self._appender is None or self._home.is_dead:
            return True
        if now_s < self._next_leave_s:
            return False
        self._next_leave_s = now_s + _LEAVE_AGAIN_S
        return self._appender.flush(_LEAVE_S)

    def _move(self, shard: str, address: str) -> None:
        left, old = self._home.shard, self._appender
        self._home.moved(shard)
        self._appender, self._address = self._open(address), address
        if old is None:
            return
        self._has_moved = True
        self._moves += 1
        self._restarts += old.restarts
        self._dropped_chunks += old.dropped_chunks + old.unacknowledged_chunks
        self._blocked_s += old.blocked_s
        _log.warning("moving to another replay shard", shard=shard, left=left, dropped_chunks=old.unacknowledged_chunks)
        thread = threading.Thread(target=old.close, name=f"leave-{left}", daemon=True)
        thread.start()
        self._closing = [*(each for each in self._closing if each.is_alive()), thread]

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close."""
        self.close()
