"""The chunks of all streams of one signature: who needs them, and how they hang together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.services.replay.chunks.blocks import BlockStore, MemoryBlocks
from tidemill.types import Signature

NONE = -1
_CHUNK_NUMBER_BITS = 32
_FIRST_CAPACITY = 256
_RELEASED = 8192  # chunks that are let go of at a time
_ONE = np.int32(1)  # of the counts' own type: another one would be cast entry by entry, ten times as slow
RECORD_BYTES = 256
"""Memory behind a chunk beside its bytes: columns and objects here, in tables and where its blocks are, rounded up."""


@dataclass(frozen=True, slots=True, eq=False)
class IncomingChunks:
    """Chunks about to be stored, by column; those of one stream in order.

    Attributes:
        streams: Number of each one's stream among all streams of the store.
        numbers: Its position in the stream, from 0.
        previous: Slot of the chunk before it in the stream, `NONE` for the first.
        step_counts: Its steps.
        params_versions: Version of the parameters that chose its last action.
        sizes: Bytes of its blocks.
        blocks: One block for each column.
    """

    streams: Sequence[int]
    numbers: Sequence[int]
    previous: Sequence[int]
    step_counts: Sequence[int]
    params_versions: Sequence[int]
    sizes: Sequence[int]
    blocks: Sequence[tuple[bytes, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class StoredChunks:
    """Chunks that were stored before the restart, by column.

    Attributes:
        streams: Number of each one's stream, int64 [N].
        numbers: Its position in the stream, int64 [N].
        step_counts: Its steps, int64 [N].
        params_versions: Version of the parameters that chose its last action, uint64 [N].
        sizes: Bytes of its blocks, int64 [N].
    """

    streams: Ints
    numbers: Ints
    step_counts: Ints
    params_versions: NDArray[np.uint64]
    sizes: Ints


class ChunkStore:
    """Keeps chunks by slot while they are held.

    Holders are the tables (one hold for each chunk that any of a table's items needs) and the stream itself (for
    its newest chunks, which items yet to come may reach into). A chunk is freed with its last holder.

    Attributes:
        signature: Columns of the chunks.
        size_bytes: Bytes of all chunks as stored.
        tail_bytes: Bytes of those that streams hold, whether or not tables do.
        count: Number of all chunks.
    """

    def __init__(self, signature: Signature, blocks: BlockStore | None = None) -> None:
        """Create an empty store; `blocks` keeps their blocks, in memory if it is not given."""
        self.signature = signature
        self.size_bytes = 0
        self.tail_bytes = 0
        self.count = 0
        self._blocks = blocks if blocks is not None else MemoryBlocks(signature)
        self._free: list[int] = []
        self._watchers: list[Callable[[Ints], None]] = []
        self._used = 0  # slots ever used; those beyond are free as well
        self._holds = np.zeros(_FIRST_CAPACITY, dtype=np.int32)
        self._next = np.full(_FIRST_CAPACITY, NONE, dtype=np.int32)
        self._previous = np.full(_FIRST_CAPACITY, NONE, dtype=np.int32)
        self._step_counts = np.zeros(_FIRST_CAPACITY, dtype=np.int32)
        self._sizes = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._order = np.zeros(_FIRST_CAPACITY, dtype=np.int64)  # stream, then position in it
        self._params_versions = np.zeros(_FIRST_CAPACITY, dtype=np.uint64)

    @property
    def capacity(self) -> int:
        """Slots there are, used or free; every slot is below it."""
        return len(self._holds)

    def reserve(self, count: int) -> list[int]:
        """Return slots for as many new chunks, to be filled by `add` before anything else happens."""
        slots = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = count - len(slots)
        slots += range(self._used, self._used + fresh)
        self._used += fresh
        while self._used > self.capacity:
            self._grow()
        return slots

    def add(self, slots: Sequence[int], chunks: IncomingChunks) -> None:
        """Store chunks [N] at slots [N], each held once by its stream."""
        for slot, blocks in zip(slots, chunks.blocks, strict=True):
            self._blocks.put(slot, blocks)
        at, previous = np.array(slots, dtype=np.int64), np.array(chunks.previous, dtype=np.int64)
        streams, numbers = np.array((chunks.streams, chunks.numbers), dtype=np.int64)
        self._holds[at] = 1
        self._next[at], self._previous[at] = NONE, previous
        follows = previous != NONE
        self._next[previous[follows]] = at[follows]
        self._step_counts[at], self._sizes[at] = chunks.step_counts, chunks.sizes
        self._order[at] = streams << _CHUNK_NUMBER_BITS | numbers
        self._params_versions[at] = np.array(chunks.params_versions, dtype=np.uint64)
        size = sum(chunks.sizes)
        self.size_bytes += size
        self.tail_bytes += size
        self.count += len(slots)

    def restore(self, columns: StoredChunks) -> Ints:
        """Put chunks from before the restart [N] into an empty store, not held yet; return their slots.

        Chunks must be in order of stream and position, so that neighbours find each other.
        """
        count = len(columns.streams)
        while self.capacity < count:
            self._grow()
        slots = np.arange(count, dtype=np.int64)
        self._used = self.count = count
        self._step_counts[:count], self._sizes[:count] = columns.step_counts, columns.sizes
        self._order[:count] = columns.streams << _CHUNK_NUMBER_BITS | columns.numbers
        self._params_versions[:count] = columns.params_versions
        follows = np.flatnonzero(np.diff(self._order[:count]) == 1)
        self._next[:count] = self._previous[:count] = NONE
        self._next[follows], self._previous[follows + 1] = follows + 1, follows
        self.size_bytes = int(columns.sizes.sum())
        return slots

    def remove_unheld(self) -> None:
        """Free the restored chunks that have no holder."""
        unheld = np.flatnonzero(self._holds[: self._used] == 0)
        if len(unheld):
            self._remove(unheld)

    def acquire(self, slots: Ints) -> None:
        """Add one holder to each of the chunks [N], all different."""
        self._holds[slots] += 1

    def release(self, slots: Ints) -> None:
        """Take one holder from each of the chunks [N], all different, and free those without any."""
        holds = self._holds[slots] - 1
        self._holds[slots] = holds
        freed = slots[holds == 0]
        if len(freed):
            self._remove(freed)

    def hold_tails(self, slots: Ints) -> int:
        """Let streams hold restored chunks [N], as they do each that is added; return their bytes."""
        self.acquire(slots)
        size = self.bytes_of(slots)
        self.tail_bytes += size
        return size

    def release_tails(self, slots: Ints) -> int:
        """Take their streams from the holders of chunks [N]; return their bytes."""
        size = self.bytes_of(slots)
        self.tail_bytes -= size
        self.release(slots)
        return size

    def watch(self, freed: Callable[[Ints], None]) -> None:
        """Call `freed` with chunks [N] whenever some are freed, before their slots are used again."""
        self._watchers.append(freed)

    def unwatch(self, freed: Callable[[Ints], None]) -> None:
        """Undo `watch`."""
        self._watchers.remove(freed)

    @property
    def record_bytes(self) -> int:
        """Bytes of memory behind all chunks beside their own."""
        return RECORD_BYTES * self.count

    def next_slot(self, slot: int) -> int:
        """Return the chunk after this one in its stream, or `NONE`."""
        return int(self._next[slot])

    def previous_slot(self, slot: int) -> int:
        """Return the chunk before this one in its stream, or `NONE`."""
        return int(self._previous[slot])

    def walk_back(self, slots: Ints, chunks: Ints) -> Ints:
        """Return the chunks [N] that many chunks [N] before the given ones [N] in their streams; all must be held."""
        slots, chunks = slots.copy(), chunks.copy()
        while len(going := chunks.nonzero()[0]):
            slots[going] = self._previous[slots[going]]
            chunks[going] -= 1
        return slots

    def reaches(self, first: Ints, steps: Ints) -> NDArray[np.bool_]:
        """Return a mask [N] of the windows, given as for `spans`, whose chunks all exist."""
        slots, left = first.copy(), steps - self._step_counts[first]
        complete = np.ones(len(first), dtype=np.bool_)
        going = np.flatnonzero(left > 0)
        while len(going):
            after = self._next[slots[going]]
            there = after != NONE
            complete[going[~there]] = False
            going, after = going[there], after[there]
            slots[going] = after
            left[going] -= self._step_counts[after]
            going = going[left[going] > 0]
        return complete

    def spans(self, first: Ints, steps: Ints) -> Ints:
        """Return every chunk of windows.

        Args:
            first: Chunk of each window's first step, [N].
            steps: Steps from the start of that chunk to the end of the window, [N].

        Returns:
            The chunks of all windows, [M]: first those of `first`, then the second ones, and so on.
        """
        slots = first
        found = [slots]
        left = steps - self._step_counts[slots]
        while len(going := (left > 0).nonzero()[0]):
            slots = self._next[slots[going]].astype(np.int64)
            left = left[going] - self._step_counts[slots]
            found.append(slots)
        return np.concatenate(found) if len(found) > 1 else slots

    def bytes_of(self, slots: Ints) -> int:
        """Return the bytes of chunks [N] as stored."""
        return int(self._sizes[slots].sum())

    def sizes_of(self, slots: Ints) -> Ints:
        """Return the bytes of each of chunks [N] as stored."""
        return self._sizes[slots]

    def in_order(self, slots: Ints) -> tuple[Ints, Ints]:
        """Sort chunks by stream and position, each once.

        Returns:
            The chunks, [C], and the place of each of `slots` among them, [N].
        """
        _, first, places = np.unique(self._order[slots], return_index=True, return_inverse=True)
        return slots[first], places

    def step_counts(self, slots: Ints) -> Ints:
        """Return the steps of chunks [N]."""
        return self._step_counts[slots].astype(np.int64)

    def params_versions(self, slots: Ints) -> NDArray[np.uint64]:
        """Return the parameter versions of chunks [N]."""
        return self._params_versions[slots]

    @property
    def blocks(self) -> BlockStore:
        """Where the blocks are."""
        return self._blocks

    def streams_of(self, slots: Ints) -> Ints:
        """Return the numbers of the streams of chunks [N]."""
        streams: Ints = self._order[slots] >> _CHUNK_NUMBER_BITS
        return streams

    def numbers_of(self, slots: Ints) -> Ints:
        """Return the positions of chunks [N] in their streams."""
        numbers: Ints = self._order[slots] & (2**_CHUNK_NUMBER_BITS - 1)
        return numbers

    def held(self) -> Ints:
        """Return every chunk there is."""
        return np.flatnonzero(self._holds)

    def copy(self) -> ChunkStore:
        """Return the chunks as they are now, without their blocks, to be read only."""
        copied = copy.copy(self)
        for name in ("_next", "_step_counts", "_sizes", "_order"):
            setattr(copied, name, getattr(self, name)[: self._used].copy())
        return copied

    def _remove(self, slots: Ints) -> None:
        for freed in self._watchers:
            freed(slots)
        self._blocks.drop(slots)
        self.size_bytes -= self.bytes_of(slots)
        self.count -= len(slots)
        before, after = self._previous[slots], self._next[slots]
        self._next[before[before != NONE]] = NONE
        self._previous[after[after != NONE]] = NONE
        self._free.extend(slots.tolist())

    def _grow(self) -> None:
        for name in ("_holds", "_next", "_previous", "_step_counts", "_sizes", "_order", "_params_versions"):
            old = getattr(self, name)
            new = np.zeros(2 * len(old), dtype=old.dtype)  # not backed by memory until it is used
            new[: len(old)] = old
            setattr(self, name, new)


def in_parts(chunks: Ints) -> list[Ints]:
    """Return chunks [N] in parts that can be let go of one after the other, between which others act."""
    return np.split(chunks, range(_RELEASED, len(chunks), _RELEASED))


class ChunkRefCounts:
    """Counts for each chunk the items of a table that need it, and holds it in the store while any does."""

    def __init__(self, store: ChunkStore) -> None:
        """Hold nothing yet."""
        self._store = store
        self._items = np.zeros(0, dtype=np.int32)  # by chunk slot
        self.size_bytes = 0

    def acquire(self, chunks: Ints) -> None:
        """Note one more item for each entry of `chunks` [N], which may repeat."""
        self._cover_store()
        new = np.unique(chunks[self._items[chunks] == 0])
        np.add.at(self._items, chunks, _ONE)
        self.size_bytes += self._store.bytes_of(new)
        self._store.acquire(new)

    def release(self, chunks: Ints) -> None:
        """Note one item less for each entry of `chunks` [N], which may repeat."""
        np.subtract.at(self._items, chunks, _ONE)
        unneeded = np.unique(chunks[self._items[chunks] == 0])
        self.size_bytes -= self._store.bytes_of(unneeded)
        self._store.release(unneeded)

    def clear(self) -> Ints:
        """Count no item any more; return the chunks that any needed, which the caller lets go of."""
        chunks = self.chunks()
        self._items[:] = 0
        self.size_bytes = 0
        return chunks

    def chunks(self) -> Ints:
        """Return the chunks that any item needs."""
        return np.flatnonzero(self._items)

    def _cover_store(self) -> None:
        if len(self._items) < self._store.capacity:
            grown = np.zeros(self._store.capacity, dtype=np.int32)
            grown[: len(self._items)] = self._items
            self._items = grown
