"""The streams of actors: how much of each the server has, and which step it expects next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import FailedPrecondition, InvalidArgument, Reason, ResourceExhausted
from tidemill.services.replay.chunks.store import NONE, ChunkStore

EPOCH_RANDOM_BITS = 20
"""Bits of a server's first epoch that are chance."""
_STREAM_BYTES = 256  # of a stream's object and numbers, rounded up
_EPOCH_BYTES = 1024
_FIRST_TIDY = 64


@dataclass(slots=True)
class Stream:
    """One stream of an epoch.

    Attributes:
        number: Its number among all streams the server ever had.
        next_step: The step the server expects next; all earlier ones are or were stored.
        ended: Whether a short chunk has ended it.
        last: Slot of its newest chunk, `NONE` before the first and after the end.
        tail: Slot of the oldest of its newest chunks that the stream itself holds, `NONE` likewise.
        tail_step: First step of that chunk.
    """

    number: int
    next_step: int = 0
    ended: bool = False
    last: int = NONE
    tail: int = NONE
    tail_step: int = 0


@dataclass(slots=True)
class Epoch:
    """The streams of one run of an actor process.

    Attributes:
        actor_id: Name of the actor.
        number: Number of the epoch; a later one of the same actor is greater.
        chunk_length: Steps of every chunk but a stream's last.
        store: Where its chunks are.
        streams: One for each environment.
        tail_steps: How many of the newest steps an item of the next chunk may reach back over.
        tail_bytes: Bytes of the chunks that the streams hold for that.
        current: False once a newer epoch of the actor, or a lack of room, has taken its place.
        connections: Calls that append to it now.
        revision: Grows with every change; a plan made at another revision is out of date.
        superseded: Number of the actor's epoch before this one; 0 if there was none, or it is no longer known.
        named: The unknown epoch that the opening named, as after a restart of the server; 0 if none.
    """

    actor_id: str
    number: int
    chunk_length: int
    store: ChunkStore
    streams: list[Stream]
    tail_steps: int
    current: bool = True
    connections: int = 0
    revision: int = 0
    superseded: int = 0
    named: int = 0
    tail_bytes: int = 0

    def is_opened_by(self, epoch: int) -> bool:
        """True if an actor that names this epoch number continues here.

        It may also name what it named before: the first answer, with the new number, may have been lost.
        """
        return epoch == self.number or (0 != epoch == self.named and not any(self.next_steps()))

    def next_steps(self) -> list[int]:
        """Return the next expected step of each environment."""
        return [stream.next_step for stream in self.streams]

    def check_current(self) -> None:
        """Raise FailedPrecondition if a newer epoch of the actor has taken its place."""
        if not self.current:
            raise FailedPrecondition(
                f"epoch {self.number} of actor {self.actor_id!r} was superseded: "
                "another writer has the same name (actor_id); give each its own",
                reason=Reason.EPOCH_SUPERSEDED,
            )

    def trim(self, stream: Stream) -> list[int]:
        """Return the chunks that no future item can reach; the caller releases them."""
        if stream.ended:
            return self._take_all(stream)
        slots = []
        reach = stream.next_step - self.tail_steps
        while stream.tail != stream.last and stream.tail_step + self.chunk_length <= reach:
            slots.append(stream.tail)
            stream.tail = self.store.next_slot(stream.tail)
            stream.tail_step += self.chunk_length
        return slots

    def let_go(self, slots: Sequence[int]) -> None:
        """Stop holding chunks for future items."""
        if slots:
            self.tail_bytes -= self.store.release_tails(np.array(slots, dtype=np.int64))

    def forget_chunk(self, chunk: int) -> None:
        """Release a chunk, if it is among the newest of a stream, and those before it: no item may reach it."""
        number = int(self.store.streams_of(np.array([chunk]))[0])
        for stream in self.streams:
            if stream.number != number or stream.tail == NONE:
                continue
            slots = [stream.tail]
            while slots[-1] not in (chunk, NONE):
                slots.append(self.store.next_slot(slots[-1]))
            if slots[-1] == NONE:  # it left the newest chunks long ago
                continue
            self.revision += 1
            stream.tail = self.store.next_slot(chunk)
            stream.tail_step += len(slots) * self.chunk_length
            if stream.tail == NONE:
                stream.last = NONE
            self.let_go(slots)

    def close(self) -> None:
        """Release every chunk and refuse further appends."""
        self.current = False
        self.revision += 1
        self.let_go([slot for stream in self.streams for slot in self._take_all(stream)])

    def _take_all(self, stream: Stream) -> list[int]:
        slots = []
        slot = stream.tail
        while slot != NONE:
            slots.append(slot)
            slot = self.store.next_slot(slot)
        stream.tail = stream.last = NONE
        return slots


@dataclass(frozen=True, slots=True)
class ClosedStreams:
    """The streams of an epoch that is closed, of which tables may still have items.

    Attributes:
        actor_id: Name of the actor.
        epoch: Number of the epoch.
        first: Number of its first stream among all streams.
        count: Number of its streams.
    """

    actor_id: str
    epoch: int
    first: int
    count: int


def places_of(streams: NDArray[np.int64], known: Sequence[ClosedStreams]) -> NDArray[np.int64]:
    """Return for each of some streams [N] whose it is, by position in `StreamRegistry.known`; -1 if that is unknown."""
    firsts = np.array([one.first for one in known], dtype=np.int64)
    counts = np.array([one.count for one in known], dtype=np.int64)
    if not len(firsts):
        return np.full(len(streams), -1, dtype=np.int64)
    places = np.searchsorted(firsts, streams, side="right") - 1
    return np.where((places >= 0) & (streams - firsts[places] < counts[places]), places, -1)


class StreamRegistry:
    """The newest epoch of every actor, and whose the streams were that are closed."""

    def __init__(self, first_epoch: int, max_streams: int) -> None:
        """Create an empty registry.

        Args:
            first_epoch: Number of the first epoch, at least 1, such as `first_epoch` gives. A server that forgot its
                streams must give no number again, so that it recognises epochs of before as unknown.
            max_streams: Most streams kept. Beyond, those of actors that are not connected are forgotten, the
                longest idle first.
        """
        self._epochs: dict[str, Epoch] = {}  # the longest idle first
        self.next_epoch = first_epoch
        self.next_stream = 0
        self._max_streams = max_streams
        self._closed: list[int] = []
        self.closed: list[ClosedStreams] = []
        self._tidy_at = _FIRST_TIDY
        self.count = 0

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The newest epoch of every actor, the longest idle first."""
        return tuple(self._epochs.values())

    @property
    def step_count(self) -> int:
        """Steps of all these streams together."""
        return sum(stream.next_step for epoch in self._epochs.values() for stream in epoch.streams)

    @property
    def actors(self) -> int:
        """Number of actors whose streams are known."""
        return len(self._epochs)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory behind the streams, beside the chunks they hold."""
        return _STREAM_BYTES * self.count + _EPOCH_BYTES * (len(self._epochs) + len(self.closed))

    def drain_closed(self) -> list[int]:
        """Return the numbers of the epochs that were closed since the last call."""
        closed, self._closed = self._closed, []
        return closed

    @property
    def known(self) -> list[ClosedStreams]:
        """Whose every stream is or was, in order of their numbers, those of open epochs included."""
        current = [ClosedStreams(e.actor_id, e.number, e.streams[0].number, len(e.streams)) for e in self.epochs]
        return sorted([*self.closed, *current], key=lambda streams: streams.first)

    def of_actor(self, actor_id: str, env_index: int | None) -> list[ClosedStreams]:
        """Return the streams that are or were an actor's, or those of one of its environments, in order.

        Raises:
            InvalidArgument: It never had such an environment.
        """
        mine = [one for one in self.known if one.actor_id == actor_id]
        if env_index is None or not mine:
            return mine
        most = max(one.count for one in mine)
        if env_index >= most:
            raise InvalidArgument(f"env_index is {env_index}, must be 0 .. {most - 1} for actor_id {actor_id!r}")
        return [replace(one, first=one.first + env_index, count=1) for one in mine if one.count > env_index]

    def tidy(self, stores: Sequence[ChunkStore]) -> None:
        """Forget closed streams without chunks, once there are twice as many as were kept the last time."""
        if len(self.closed) < self._tidy_at:
            return
        firsts = np.array([one.first for one in self.closed])
        has_chunks = np.zeros(len(firsts), dtype=np.bool_)
        for store in stores:
            places = np.searchsorted(firsts, np.unique(store.streams_of(store.held())), side="right") - 1
            has_chunks[places[places >= 0]] = True
        self.closed = [one for one, kept in zip(self.closed, has_chunks.tolist(), strict=True) if kept]
        self._tidy_at = max(2 * len(self.closed), _FIRST_TIDY)

    def restore(
        self, epochs: Sequence[Epoch], next_epoch: int, next_stream: int, closed: Sequence[ClosedStreams] = ()
    ) -> None:
        """Restore the epochs from before the restart, the longest idle first; numbering continues as given."""
        self.closed = sorted(closed, key=lambda streams: streams.first)
        self._epochs = {epoch.actor_id: epoch for epoch in epochs}
        self.next_epoch, self.next_stream = max(self.next_epoch, next_epoch), next_stream
        self.count = sum(len(epoch.streams) for epoch in epochs)

    def open(
        self, actor_id: str, epoch: int, env_count: int, store: ChunkStore, chunk_length: int, tail_steps: int
    ) -> Epoch:
        """Return the epoch to append to: the one named, or a new one if it is 0 or not known (any more).

        Raises:
            FailedPrecondition: the epoch was superseded by a newer one of the same actor.
            InvalidArgument: the epoch named has another number of streams, signature or chunk length.
            ResourceExhausted: there is no room for so many streams.
        """
        known = self._epochs.get(actor_id)
        if known is None or not known.is_opened_by(epoch):
            if known is not None and 0 < epoch < known.number:
                raise FailedPrecondition(
                    f"epoch {epoch} of actor {actor_id!r} was superseded by epoch {known.number}: "
                    "another writer has the same name (actor_id); give each its own",
                    reason=Reason.EPOCH_SUPERSEDED,
                )
            opened = self._begin(actor_id, env_count, store, chunk_length, tail_steps)
            opened.named = epoch
            return opened
        _check_same(known, env_count, store, chunk_length)
        known.tail_steps = max(known.tail_steps, tail_steps)
        self._epochs[actor_id] = self._epochs.pop(actor_id)
        return known

    def forget_idle(self) -> bool:
        """Forget the streams of the longest idle actor that is not connected; return whether there was one."""
        for epoch in self._epochs.values():
            if not epoch.connections:
                self._close(epoch)
                return True
        return False

    def forget_store(self, store: ChunkStore) -> None:
        """Forget the streams of a store that no table uses any more, whether or not an actor is connected."""
        for epoch in self.epochs:
            if epoch.store is store:
                self._close(epoch)

    def disconnected(self, epoch: Epoch) -> None:
        """Note that one call fewer appends to an epoch."""
        epoch.connections -= 1
        if epoch.current:
            self._epochs[epoch.actor_id] = self._epochs.pop(epoch.actor_id)

    def _begin(self, actor_id: str, env_count: int, store: ChunkStore, chunk_length: int, tail_steps: int) -> Epoch:
        before = self._epochs.get(actor_id)
        self._make_room(actor_id, env_count)
        streams = [Stream(self.next_stream + i) for i in range(env_count)]
        self.next_stream += env_count
        epoch = Epoch(actor_id, self.next_epoch, chunk_length, store, streams, tail_steps)
        epoch.superseded = before.number if before else 0
        self.next_epoch += 1
        self._epochs[actor_id] = epoch
        self.count += env_count
        return epoch

    def _make_room(self, actor_id: str, env_count: int) -> None:
        superseded = self._epochs.get(actor_id)
        idle = [epoch for epoch in self._epochs.values() if epoch is not superseded and not epoch.connections]
        leaving = [superseded] if superseded else []
        while self.count - sum(len(epoch.streams) for epoch in leaving) + env_count > self._max_streams:
            if not idle:
                raise ResourceExhausted(
                    f"env_count is {env_count}, which with the {self.count} streams of connected actors exceeds "
                    f"max_streams ({self._max_streams}); raise it, or connect fewer environments",
                    reason=Reason.TOO_MANY_STREAMS,
                )
            leaving.append(idle.pop(0))
        for epoch in leaving:
            self._close(epoch)

    def _close(self, epoch: Epoch) -> None:
        epoch.close()
        self._closed.append(epoch.number)
        self.closed.append(
            ClosedStreams(epoch.actor_id, epoch.number, epoch.streams[0].number, len(epoch.streams)),
        )
        self.closed.sort(key=lambda streams: streams.first)
        self.count -= len(epoch.streams)
        del self._epochs[epoch.actor_id]


def first_epoch(now_ms: int, chance: int) -> int:
    """Return the first epoch of a server that starts with nothing stored.

    It is above those of every previous run as long as the clock was right, so that an actor's former process can be
    distinguished from its present one. The random bits keep two runs apart whatever the clock does: if they shared a
    number, an actor of the first would continue a stream of the second, and steps would be lost.

    Args:
        now_ms: Time of day, in milliseconds.
        chance: A random number of `EPOCH_RANDOM_BITS` bits.
    """
    return max(now_ms, 1) << EPOCH_RANDOM_BITS | chance


def _check_same(known: Epoch, env_count: int, store: ChunkStore, chunk_length: int) -> None:
    wanted = {
        "env_count": (env_count, len(known.streams)),
        "chunk_length": (chunk_length, known.chunk_length),
    }
    for name, (got, had) in wanted.items():
        if got != had:
            raise InvalidArgument(f"{name} is {got}, must be {had} as when epoch {known.number} was opened")
    if store is not known.store:
        raise InvalidArgument(f"signature differs from the one epoch {known.number} was opened with")
