"""Record of the chunks that a caller of Sample keeps, so that each is sent to it once."""

from __future__ import annotations

from collections import deque

import numpy as np

from tidemill.arrays import Ints
from tidemill.errors import FailedPrecondition, Reason
from tidemill.services.replay.chunks.store import ChunkStore


class ChunkMirror:
    """The slots that one caller has for chunks, and which chunk is in each.

    A slot that a batch names goes to no other chunk before `hold` further batches are placed, so that the caller has
    time to read it. Chunks that the store frees go first, then those that were placed first.
    """

    def __init__(self, store: ChunkStore, slots: int, hold: int) -> None:
        """Begin with empty slots, enough for `hold` + 1 batches; `close` ends it."""
        self._store, self._hold = store, hold
        self._batches = 0
        # both count from 1, so that what was never used is not backed by memory
        self._slot_of = np.zeros(store.capacity, dtype=np.int32)  # by chunk
        self._chunk_in = np.zeros(slots, dtype=np.int32)
        self._used_at = np.zeros(slots, dtype=np.int64)  # number of the newest batch that named the slot
        self._untouched = 0  # slots from here on were never used
        self._freed: deque[int] = deque()  # slots whose chunk is gone, the first freed first
        self._hand = 0  # of the clock that goes round the slots
        store.watch(self._forget)

    def missing(self, chunks: Ints) -> Ints:
        """Return the positions of a batch's chunks [C] that the caller does not have."""
        self._cover_store()
        return np.flatnonzero(self._slot_of[chunks] == 0)

    def place(self, chunks: Ints) -> Ints:
        """Note that the caller gets a batch with chunks [C], all different; return the slot of each, [C].

        Raises:
            FailedPrecondition: There are too few slots.
        """
        self._batches += 1
        self._cover_store()
        slots = self._slot_of[chunks].astype(np.int64) - 1
        new = slots < 0
        self._used_at[slots[~new]] = self._batches
        slots[new] = placed = self._take(int(new.sum()))
        self._used_at[placed] = self._batches
        self._chunk_in[placed] = chunks[new] + 1
        self._slot_of[chunks[new]] = placed + 1
        return slots

    def close(self) -> None:
        """Stop following the store."""
        self._store.unwatch(self._forget)

    def _take(self, count: int) -> Ints:
        """Return slots for new chunks, [count], taken from the chunks in them."""
        untouched = np.arange(self._untouched, min(self._untouched + count, len(self._chunk_in)))
        self._untouched += len(untouched)
        freed = self._take_freed(count - len(untouched))
        found = [untouched, freed]
        left = count - len(untouched) - len(freed)
        seen = 0  # slots since the last that was found
        while left:
            found.append(self._evict(left))
            left -= len(found[-1])
            seen = 0 if len(found[-1]) else seen + self._window(left)
            if seen > len(self._chunk_in):
                self._freed.extend(np.concatenate(found).tolist())
                raise FailedPrecondition(
                    f"mirror.slots is {len(self._chunk_in)}, too few for the chunks of {self._hold + 1} batches: set "
                    "mirror.slot_steps (`keep.chunk_length`) to the length of the writers' chunks, which is less",
                    reason=Reason.SLOT_TOO_SMALL,
                )
        return np.concatenate(found)

    def _take_freed(self, count: int) -> Ints:
        """Return up to `count` slots whose chunks are gone; those that may still be read go to the end of the queue."""
        taken: list[int] = []
        for _ in range(len(self._freed)):
            if len(taken) == count:
                break
            slot = self._freed.popleft()
            is_read = self._used_at[slot] + self._hold >= self._batches
            (self._freed if is_read else taken).append(slot)
        return np.array(taken, dtype=np.int64)

    def _evict(self, count: int) -> Ints:
        """Return up to `count` slots next in turn whose chunks are still in the store."""
        window = self._window(count)
        order = (self._hand + np.arange(window)) % len(self._chunk_in)
        usable = (self._chunk_in[order] > 0) & (self._used_at[order] + self._hold < self._batches)
        places = np.flatnonzero(usable)[:count]
        self._hand = (self._hand + (int(places[-1]) + 1 if len(places) == count else window)) % len(self._chunk_in)
        slots: Ints = order[places]
        self._slot_of[self._chunk_in[slots] - 1] = 0
        self._chunk_in[slots] = 0  # so that none is taken twice before it is placed
        return slots

    def _window(self, count: int) -> int:
        """Return how many slots are looked at for `count`."""
        return min(4 * count + 64, len(self._chunk_in))

    def _forget(self, chunks: Ints) -> None:
        """Take chunks that the store frees out of their slots."""
        known = chunks[chunks < len(self._slot_of)]
        slots = self._slot_of[known] - 1
        self._slot_of[known] = 0
        slots = slots[slots >= 0]
        self._chunk_in[slots] = 0
        self._freed.extend(slots.tolist())

    def _cover_store(self) -> None:
        if len(self._slot_of) < self._store.capacity:
            grown = np.zeros(self._store.capacity, dtype=np.int32)
            grown[: len(self._slot_of)] = self._slot_of
            self._slot_of = grown
