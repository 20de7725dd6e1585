"""The items of a table, by column, and how those of a batch are picked."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.errors import FailedPrecondition, Reason
from tidemill.replay.chunk import SLOT_OF_KEY
from tidemill.services.replay.selectors.selector import Selector
from tidemill.services.replay.selectors.uniform import Uniform
from tidemill.services.replay.tables.segment_counts import SegmentCounts

_SLOT_BITS = np.uint64(32)
_ITEM_BYTES = 64  # of the columns below and those of two selectors, rounded up
_PAYLOAD_BYTES = 160  # of a payload's entry and object, beside its bytes
_MOST_SLOTS = 2**31 - 1
_MOST_LENT = 2**22
_COLUMNS = (
    "first_chunks",
    "offsets",
    "lengths",
    "times_sampled",
    "_numbers",
    "priorities",
    "segments",
    "_free",
    "_lent",
    "_underway",
)


@dataclass(frozen=True, slots=True, eq=False)
class NewItems:
    """Items about to be inserted, by column.

    Attributes:
        first_chunks: Chunk of each item's first step, int64 [N].
        offsets: Position of that step in the chunk, int64 [N].
        lengths: Steps of each item, int64 [N].
        priorities: float64 [N], from `TableConfig.least_priority` to `MAX_PRIORITY`.
        payloads: One for each item, or empty.
        times_sampled: How often each was sampled before, [N]; None for never.
    """

    first_chunks: Ints
    offsets: Ints
    lengths: Ints
    priorities: NDArray[np.float64]
    payloads: tuple[bytes, ...] = ()
    times_sampled: NDArray[np.integer] | None = None

    def part(self, start: int, end: int) -> NewItems:
        """Return items start .. end - 1."""
        here = slice(start, end)
        return NewItems(
            self.first_chunks[here],
            self.offsets[here],
            self.lengths[here],
            self.priorities[here],
            self.payloads[here],
            self.times_sampled[here] if self.times_sampled is not None else None,
        )


@dataclass(frozen=True, slots=True, eq=False)
class RestoredItems:
    """Items from before the restart, by column.

    Attributes:
        new: What they were inserted with; priorities are the newest known.
        slots: Where they were, all different, int64 [N].
        numbers: Their insertion numbers modulo 2^32, uint32 [N].
        times_sampled: uint32 [N].
        segments: Segment of the log that has each, int32 [N].
    """

    new: NewItems
    slots: Ints
    numbers: NDArray[np.uint32]
    times_sampled: NDArray[np.uint32]
    segments: NDArray[np.int32]


def slots_of(max_items: int, max_times_sampled: int) -> int:
    """Return the slots of a table: where items may be used up, those on their way to a reader need room beside it."""
    return min(max_items + min(max_items, _MOST_LENT), _MOST_SLOTS) if max_times_sampled else max_items


class Items:
    """Columns of `capacity` slots. A slot is in use while its length is not 0.

    An item that was sampled as often as it may is *lent* until its batch has arrived: it is no longer in the table, but
    its slot is kept, so that it can come back as it was.

    An item's key is its insertion number plus a salt (modulo 2^32) and its slot + 1, so that a key of a removed item is
    mistaken neither for the slot's next one nor for one of a server that started with nothing after this one.
    """

    def __init__(self, capacity: int, *, first_number: int = 0, key_salt: int = 0) -> None:
        """Create empty columns; memory is taken only as slots are used.

        Args:
            capacity: Number of slots.
            first_number: Insertion number of the first item.
            key_salt: What keys are told apart by from those of another server, 0 to 2^32 - 1.
        """
        self._salt = np.uint32(key_salt)  # sums with it are modulo 2^32, as numbers are
        self.count = 0  # those that are lent left out
        self.lent_count = 0
        self.capacity = capacity
        self.first_chunks = np.zeros(capacity, dtype=np.int32)
        self.offsets = np.zeros(capacity, dtype=np.uint16)
        self.lengths = np.zeros(capacity, dtype=np.uint16)
        self.times_sampled = np.zeros(capacity, dtype=np.uint32)
        self._numbers = np.zeros(capacity, dtype=np.uint32)  # insertion number modulo 2^32
        self.inserted = first_number
        self.priorities = np.zeros(capacity)  # as given, before any exponent
        self.segments = np.zeros(capacity, dtype=np.int32)  # where the log has the item; 0 in an empty slot
        self.by_segment = SegmentCounts()
        self._is_logged = False  # whether any segment ever had an item: without a log there is nothing to count
        self._payloads: dict[int, bytes] = {}
        self.payload_bytes = 0
        self._free = np.zeros(capacity, dtype=np.int32)  # a stack of slots used before
        self._free_count = 0
        self._used = 0  # slots ever used
        self._lent = np.zeros(capacity, dtype=np.bool_)
        self._underway = np.zeros(capacity, dtype=np.uint32)  # samples of each item that have not arrived
        self._has_underway = False  # whether any ever was: most tables need not look
        self.moves = 0  # how many times items were given other slots

    def add(self, new: NewItems) -> Ints:
        """Store items [N], for which there must be room; return their slots, int64 [N]."""
        count = len(new.lengths)
        slots = self._take_free(count)
        self.first_chunks[slots] = new.first_chunks
        self.offsets[slots] = new.offsets
        self.lengths[slots] = new.lengths
        self.times_sampled[slots] = 0 if new.times_sampled is None else new.times_sampled
        self._numbers[slots] = (np.arange(count) + self.inserted) & 0xFFFFFFFF
        self.inserted += count
        self.priorities[slots] = new.priorities
        self._keep_payloads(slots, new.payloads)
        self.count += count
        return slots

    def remove(self, slots: Ints) -> None:
        """Free slots [N], all in use."""
        self.lengths[slots] = 0
        if self._is_logged:
            self.by_segment.remove_each(self.segments[slots])
            self.segments[slots] = 0
        self._give_back(slots)
        lent = int(np.count_nonzero(self._lent[slots])) if self.lent_count else 0
        if lent:
            self._lent[slots] = False
            self.lent_count -= lent
        if self._has_underway:
            self._underway[slots] = 0
        self.count -= len(slots) - lent
        if self._payloads:
            for slot in slots.tolist():
                self.payload_bytes -= len(self._payloads.pop(slot, b""))

    def narrow(self, capacity: int) -> None:
        """Use no slot at or beyond a lower capacity for another item; there may be no more items than that."""
        free = self._free[: self._free_count].copy()
        self.capacity, self._free_count = capacity, 0
        self._give_back(free)

    def move(self, slots: Ints) -> Ints:
        """Move items [N] to free slots, which are returned; their samples on the way count as arrived."""
        self._underway[slots] = 0
        moved = self.export(slots)
        self.remove(slots)
        places = self._take_free(len(slots))
        self._put(replace(moved, slots=places))
        self.count += len(slots)
        self.moves += len(slots)
        return places

    def retract(self, used: int) -> None:
        """Forget the slots from `used` on, at or beyond the capacity and empty."""
        self._used = used

    def resize(self, capacity: int) -> None:
        """Take another capacity, below which all slots ever used are.

        Raises:
            MemoryError: There is no memory for so many slots; nothing was changed.
        """
        columns = {name: np.zeros(capacity, dtype=getattr(self, name).dtype) for name in _COLUMNS}
        for name, column in columns.items():
            column[: self._used] = getattr(self, name)[: self._used]
            setattr(self, name, column)
        self.capacity = capacity

    def log(self, slots: Ints, segment: int) -> None:
        """Note that a segment of the log has the items at slots [N] now."""
        self._is_logged = True
        self.by_segment.remove_each(self.segments[slots])
        self.segments[slots] = segment
        self.by_segment.add(segment, len(slots))

    def keys(self, slots: Ints) -> NDArray[np.uint64]:
        """Return the keys of slots [N]."""
        return (self._numbers[slots] + self._salt).astype(np.uint64) << _SLOT_BITS | (slots + 1).astype(np.uint64)

    def find(self, keys: NDArray[np.uint64], *, with_lent: bool = False) -> tuple[Ints, NDArray[np.bool_]]:
        """Look keys [N] up; those of items that are lent are found only if asked for.

        Returns:
            The slots of those found, int64 [M], and which were found, [N].
        """
        slots = (keys & SLOT_OF_KEY).astype(np.int64) - 1
        found = (slots >= 0) & (slots < len(self.lengths))
        slots = np.where(found, slots, 0)
        found &= (self.lengths[slots] > 0) & (self._numbers[slots] + self._salt == keys >> _SLOT_BITS)
        if self.lent_count and not with_lent:
            found &= ~self._lent[slots]
        return slots[found], found

    def lend(self, slots: Ints) -> None:
        """Take items [N] out of the table, whose slots stay theirs until they are removed or come back."""
        self._lent[slots] = True
        self.lent_count += len(slots)
        self.count -= len(slots)

    def take_back(self, slots: Ints) -> None:
        """Put items [N] that were lent into the table again."""
        self._lent[slots] = False
        self.lent_count -= len(slots)
        self.count += len(slots)

    def lent(self) -> Ints:
        """Return the slots of items that are lent, oldest first."""
        slots = np.flatnonzero(self._lent[: self._used])
        return slots[np.argsort(-self.ages(slots), kind="stable")]

    def is_lent(self, slots: Ints) -> NDArray[np.bool_]:
        """Return a mask [N] of the slots that hold a lent item."""
        return self._lent[slots]

    def begin_samples(self, slots: Ints) -> None:
        """Count a sample of each of slots [N], which may repeat, as on its way."""
        self._has_underway = True
        np.add.at(self._underway, slots, _ONE)

    def end_samples(self, slots: Ints) -> None:
        """Count a sample of each of slots [N], which may repeat, as no longer on its way."""
        np.subtract.at(self._underway, slots, _ONE)

    def forget_underway(self) -> None:
        """Count no sample as on its way any more."""
        if self._has_underway:
            self._underway[: self._used] = 0

    def underway(self, slots: Ints) -> NDArray[np.uint32]:
        """Return the number of samples of each slot that have not arrived, [N]."""
        return self._underway[slots]

    def ages(self, slots: Ints) -> Ints:
        """Return the number of items inserted after each slot's item, [N]."""
        return (self.inserted - 1 - self._numbers[slots].astype(np.int64)) & 0xFFFFFFFF

    def payloads(self, slots: Ints) -> tuple[bytes, ...]:
        """Return the payload of each slot, or nothing when none has one."""
        if not self._payloads:
            return ()
        payloads = tuple(self._payloads.get(slot, b"") for slot in slots.tolist())
        return payloads if any(payloads) else ()

    def live(self) -> Ints:
        """Return the slots of items in the table."""
        slots = self.held()
        return slots[~self._lent[slots]] if self.lent_count else slots

    def held(self, start: int = 0, count: int | None = None) -> Ints:
        """Return the slots in use, or which of `count` from `start` on are: of items in the table, and lent ones."""
        end = self._used if count is None else min(start + count, self._used)
        slots = np.flatnonzero(self.lengths[start:end])
        return slots + start if start else slots

    def pick(self, places: Ints) -> Ints:
        """Return the slots [N] in use that come at some places, 0 .. count - 1, counted from the first slot."""
        return places if self.count == self._used else self.live()[places]

    def numbers(self, slots: Ints) -> NDArray[np.uint32]:
        """Return the insertion numbers of slots [N], modulo 2^32."""
        return self._numbers[slots]

    def oldest_first(self) -> Ints:
        """Return the slots in use in the order of their insertion."""
        slots = self.live()
        return slots[np.argsort(-self.ages(slots), kind="stable")]

    def has(self, slots: Ints, numbers: Ints) -> NDArray[np.bool_]:
        """Return a mask [N] of the slots that still hold the items of insertion numbers [N]."""
        there: NDArray[np.bool_] = (self.lengths[slots] > 0) & (self._numbers[slots] == numbers & 0xFFFFFFFF)
        return there

    @property
    def used(self) -> int:
        """Slots ever used; those beyond are empty."""
        return self._used

    def ends(self, slots: Ints) -> Ints:
        """Return for slots [N] the steps from the start of an item's first chunk to the item's end."""
        return self.offsets[slots].astype(np.int64) + self.lengths[slots]

    def copy(self) -> Items:
        """Return the items as they are now, to be read only."""
        copied = copy.copy(self)
        for name in ("first_chunks", "offsets", "lengths", "times_sampled", "_numbers", "priorities", "_lent"):
            setattr(copied, name, getattr(self, name)[: self._used].copy())
        copied._payloads = self._payloads.copy()
        return copied

    def export(self, slots: Ints) -> RestoredItems:
        """Return the items at slots [N]."""
        new = NewItems(
            first_chunks=self.first_chunks[slots].astype(np.int64),
            offsets=self.offsets[slots].astype(np.int64),
            lengths=self.lengths[slots].astype(np.int64),
            priorities=self.priorities[slots],
            payloads=self.payloads(slots),
        )
        return RestoredItems(new, slots, self._numbers[slots], self.times_arrived(slots), self.segments[slots])

    def times_arrived(self, slots: Ints) -> NDArray[np.uint32]:
        """Return the number of arrived samples of each slot's item, [N]. A restart may know no others."""
        times: NDArray[np.uint32] = self.times_sampled[slots]
        return times - self._underway[slots] if self._has_underway else times

    def restore(self, items: RestoredItems) -> None:
        """Put items into empty columns, at the slots they had."""
        slots = items.slots
        self._put(items)
        self._is_logged = bool(items.segments.any())
        self.count = len(slots)
        self._used = int(slots.max(initial=-1)) + 1
        free = np.flatnonzero(self.lengths[: self._used] == 0)[::-1]  # the lowest is taken first
        self._free[: len(free)] = free
        self._free_count = len(free)

    def bytes_for(self, payloads: Sequence[bytes], count: int) -> int:
        """Return by how much `memory_bytes` grows at most with so many items more, and their payloads."""
        payload_bytes = sum(map(len, payloads)) + _PAYLOAD_BYTES * len(payloads)
        return _ITEM_BYTES * max(count - self._free_count, 0) + payload_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory behind the items: their columns, their places in the selectors, and their payloads."""
        return _ITEM_BYTES * self._used + _PAYLOAD_BYTES * len(self._payloads) + self.payload_bytes

    def _put(self, items: RestoredItems) -> None:
        slots, new = items.slots, items.new
        self.first_chunks[slots], self.offsets[slots] = new.first_chunks, new.offsets
        self.lengths[slots], self.times_sampled[slots] = new.lengths, items.times_sampled
        self._numbers[slots] = items.numbers
        self.priorities[slots], self.segments[slots] = new.priorities, items.segments
        self.by_segment.add_each(items.segments)
        self._keep_payloads(slots, new.payloads)

    def _give_back(self, slots: NDArray[np.integer]) -> None:
        usable = slots[slots < self.capacity]
        end = self._free_count + len(usable)
        self._free[self._free_count : end] = usable
        self._free_count = end

    def _keep_payloads(self, slots: Ints, payloads: tuple[bytes, ...]) -> None:
        if payloads:
            self._payloads.update((slot, p) for slot, p in zip(slots.tolist(), payloads, strict=True) if p)
            self.payload_bytes += sum(map(len, payloads))

    def _take_free(self, count: int) -> Ints:
        reused = min(count, self._free_count)
        slots = np.empty(count, dtype=np.int64)
        slots[:reused] = self._free[self._free_count - reused : self._free_count]
        slots[reused:] = np.arange(self._used, self._used + count - reused)
        self._free_count -= reused
        self._used += count - reused
        return slots


class ItemSampler:
    """Lets a selector pick, and counts how often each item was picked."""

    def __init__(self, items: Items, selector: Selector, max_times_sampled: int, rng: np.random.Generator) -> None:
        """Pick from items; `max_times_sampled` of 0 means as often as one likes."""
        self._items, self._selector, self._limit, self._rng = items, selector, max_times_sampled, rng
        self.left = 0  # samples that the items may still be given; counted only with a limit

    def add(self, slots: Ints) -> None:
        """Count the samples that items [N], new or with a new priority, may be given."""
        self.left += self._draws_of(slots)

    def discard(self, slots: Ints) -> None:
        """Stop counting those of items [N]."""
        self.left -= self._draws_of(slots)

    def sample(
        self, count: int, without_replacement: bool, rng: np.random.Generator | None = None
    ) -> tuple[Ints, NDArray[np.float64], Ints]:
        """Return slots [count], their probabilities, and which of them this used up, gone from the selector.

        With `rng` they depend on that and the items alone, not on what happened before.
        """
        selector, total_weight = self._selector, self._selector.total_weight
        slots, weights, exhausted = _NO_SLOTS, np.empty(0), _NO_SLOTS
        while len(slots) < count:  # again only for items that were picked more often than they may
            picked = self._pick_some(count - len(slots), without_replacement, rng)
            slots = np.concatenate((slots, picked))
            weights = np.concatenate((weights, selector.weights(picked)))
            exhausted = np.concatenate((exhausted, self._use(picked)))
        return slots, weights / total_weight if selector.random else np.ones(count), exhausted

    def sample_seeded(self, count: int, seed: int) -> tuple[Ints, NDArray[np.float64]]:
        """Return slots [count], drawn with replacement, and their probabilities.

        They depend on the seed, the slots in use and their priorities alone, not on what happened before.

        Raises:
            FailedPrecondition: The selector does not draw at random, or items may be sampled only so often.
        """
        selector = self._selector
        if not selector.random or self._limit:
            raise FailedPrecondition(
                "seed is set, which needs the sampler uniform or prioritized and max_times_sampled 0: "
                "other draws depend on earlier ones",
                reason=Reason.TABLE_UNSUITABLE,
            )
        rng = np.random.default_rng(seed)
        if isinstance(selector, Uniform):  # which has the slots in an order that depends on removals
            slots = self._items.pick(rng.integers(self._items.count, size=count))
        else:
            slots = selector.draw(count, rng)
        self._use(slots)
        return slots, selector.weights(slots) / selector.total_weight

    def use(self, slots: Ints) -> NDArray[np.float64]:
        """Count a sample of each of slots [N], picked uniformly elsewhere; return their probabilities."""
        self._use(slots)
        return np.full(len(slots), 1.0 / max(self._items.count, 1))

    def undo(self, slots: Ints) -> Ints:
        """Take back a sample of each of slots [N], which may repeat; return the items that may be picked again.

        Those are to be put into the selector once more.
        """
        distinct, limit = np.unique(slots), self._limit
        used_up = distinct[self._items.is_lent(distinct)]
        counted = np.setdiff1d(distinct, used_up)
        self.discard(counted)
        np.subtract.at(self._items.times_sampled, slots, _ONE)
        self.add(counted)
        return used_up[self._items.times_sampled[used_up] < limit] if limit else _NO_SLOTS

    def _pick_some(self, count: int, without_replacement: bool, seeded: np.random.Generator | None) -> Ints:
        selector, limit, rng = self._selector, self._limit, seeded or self._rng
        if seeded is not None and isinstance(selector, Uniform) and not limit:
            held = self._items.count  # which it has in an order that depends on removals
            if without_replacement:
                return self._items.pick(rng.choice(held, size=min(count, held), replace=False))
            return self._items.pick(rng.integers(held, size=count))
        if without_replacement:
            return selector.take(count, rng)
        if not limit:
            return selector.draw(count, rng)
        if selector.random:
            slots = selector.draw(count, rng)
            return slots[self._items.times_sampled[slots] + _occurrences(slots) < limit]
        slots = selector.take(count, rng)
        return np.repeat(slots, limit - self._items.times_sampled[slots].astype(np.int64))[:count]

    def _use(self, slots: Ints) -> Ints:
        """Count the samples of items; return those that may not be sampled again, gone from the selector."""
        times = self._items.times_sampled
        np.add.at(times, slots, _ONE)
        if not self._limit:
            return _NO_SLOTS
        self.left -= len(slots)
        exhausted = np.unique(slots[times[slots] >= self._limit])
        self._selector.remove(exhausted)
        return exhausted

    def _draws_of(self, slots: Ints) -> int:
        limit = self._limit
        if not limit:
            return 0
        slots = slots[self._selector.can_pick(slots)]
        return limit * len(slots) - int(self._items.times_sampled[slots].sum())


_NO_SLOTS: Ints = np.empty(0, dtype=np.int64)
_ONE = np.uint32(1)  # of the counts' own type: another one would be cast slot by slot, 20 times as slow


def _occurrences(values: Ints) -> Ints:
    """Return for each entry of [N] how many equal ones come before it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    positions = np.arange(len(values))
    starts = np.maximum.accumulate(np.where(np.r_[True, ordered[1:] != ordered[:-1]], positions, 0))
    counts = np.empty_like(values)
    counts[order] = positions - starts
    return counts
