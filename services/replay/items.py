"""The items of a table, by column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_SLOT_MASK = np.uint64(2**32 - 1)
_SLOT_BITS = np.uint64(32)


@dataclass(frozen=True, slots=True, eq=False)
class NewItems:
    """Items about to be inserted, by column.

    Attributes:
        first_chunks: Chunk of each item's first step, int64 [N].
        offsets: Position of that step in the chunk, int64 [N].
        lengths: Steps of each item, int64 [N].
        priorities: float64 [N], finite and not negative.
        payloads: One for each item, or empty.
    """

    first_chunks: Ints
    offsets: Ints
    lengths: Ints
    priorities: NDArray[np.float64]
    payloads: tuple[bytes, ...] = ()

    def part(self, start: int, end: int) -> NewItems:
        """Return items start .. end - 1."""
        here = slice(start, end)
        return NewItems(
            self.first_chunks[here],
            self.offsets[here],
            self.lengths[here],
            self.priorities[here],
            self.payloads[here],
        )


class Items:
    """Columns of `capacity` slots. A slot is in use while its length is not 0.

    An item's key is its insertion number (modulo 2^32) and its slot + 1, so that a key of a removed item is not
    mistaken for the slot's next one.
    """

    def __init__(self, capacity: int) -> None:
        """Create empty columns; memory is taken only as slots are used."""
        self.count = 0
        self.first_chunks = np.zeros(capacity, dtype=np.int32)
        self.offsets = np.zeros(capacity, dtype=np.uint16)
        self.lengths = np.zeros(capacity, dtype=np.uint16)
        self.times_sampled = np.zeros(capacity, dtype=np.uint32)
        self._numbers = np.zeros(capacity, dtype=np.uint32)  # insertion number modulo 2^32
        self._inserted = 0
        self._payloads: dict[int, bytes] = {}
        self._free = np.zeros(capacity, dtype=np.int32)  # a stack of slots used before
        self._free_count = 0
        self._used = 0  # slots ever used

    def add(self, new: NewItems) -> Ints:
        """Store items [N], for which there must be room; return their slots, int64 [N]."""
        count = len(new.lengths)
        slots = self._take_free(count)
        self.first_chunks[slots] = new.first_chunks
        self.offsets[slots] = new.offsets
        self.lengths[slots] = new.lengths
        self.times_sampled[slots] = 0
        self._numbers[slots] = (np.arange(count) + self._inserted) & 0xFFFFFFFF
        self._inserted += count
        self._payloads.update((slot, p) for slot, p in zip(slots.tolist(), new.payloads, strict=False) if p)
        self.count += count
        return slots

    def remove(self, slots: Ints) -> None:
        """Free slots [N], all in use."""
        self.lengths[slots] = 0
        end = self._free_count + len(slots)
        self._free[self._free_count : end] = slots
        self._free_count = end
        self.count -= len(slots)
        if self._payloads:
            for slot in slots.tolist():
                self._payloads.pop(slot, None)

    def keys(self, slots: Ints) -> NDArray[np.uint64]:
        """Return the keys of slots [N]."""
        return self._numbers[slots].astype(np.uint64) << _SLOT_BITS | (slots + 1).astype(np.uint64)

    def find(self, keys: NDArray[np.uint64]) -> tuple[Ints, NDArray[np.bool_]]:
        """Look keys [N] up.

        Returns:
            The slots of those found, int64 [M], and which were found, [N].
        """
        slots = (keys & _SLOT_MASK).astype(np.int64) - 1
        found = (slots >= 0) & (slots < len(self.lengths))
        slots = np.where(found, slots, 0)
        found &= (self.lengths[slots] > 0) & (self._numbers[slots] == keys >> _SLOT_BITS)
        return slots[found], found

    def ages(self, slots: Ints) -> Ints:
        """Return how many items were inserted after each of slots [N]."""
        return (self._inserted - 1 - self._numbers[slots].astype(np.int64)) & 0xFFFFFFFF

    def payloads(self, slots: Ints) -> tuple[bytes, ...]:
        """Return the payload of each slot, or nothing when none has one."""
        if not self._payloads:
            return ()
        payloads = tuple(self._payloads.get(slot, b"") for slot in slots.tolist())
        return payloads if any(payloads) else ()

    def live(self) -> Ints:
        """Return the slots in use."""
        return np.flatnonzero(self.lengths[: self._used])

    def _take_free(self, count: int) -> Ints:
        reused = min(count, self._free_count)
        slots = np.empty(count, dtype=np.int64)
        slots[:reused] = self._free[self._free_count - reused : self._free_count]
        slots[reused:] = np.arange(self._used, self._used + count - reused)
        self._free_count -= reused
        self._used += count - reused
        return slots
