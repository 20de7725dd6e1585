"""One table: what is inserted, sampled, changed and removed. No locks, waits or clocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.errors import FailedPrecondition, InvalidArgument, NotFound, Reason
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.services.replay.chunks.store import NONE, ChunkRefCounts, ChunkStore
from tidemill.services.replay.selectors.selector import SelectorPair, make_selector
from tidemill.services.replay.tables.epochs import Epochs
from tidemill.services.replay.tables.insertion_times import InsertionTimes
from tidemill.services.replay.tables.items import Items, ItemSampler, NewItems, RestoredItems, slots_of
from tidemill.services.replay.tables.rate_limiter import RateLimiter
from tidemill.services.replay.tables.sampled_items import SampledItems, locate
from tidemill.services.replay.tables.stats import Counters, TableStats

_MAX_FORMER = 256
"""Configurations that are remembered: a client that read one comes back with it before so many changes are made."""


class Table:
    """Items over the chunks of a store, picked by a sampler and evicted by a remover.

    A change after which earlier draws must not be settled begins another *era*: when the items are laid out again, all
    that is on its way to readers counts as arrived; a rate limiter that begins again has counted no earlier sample.
    """

    def __init__(
        self,
        config: TableConfig,
        store: ChunkStore,
        rng: np.random.Generator,
        *,
        number: int = 1,
        durable: bool = False,
        key_salt: int = 0,
    ) -> None:
        """Create an empty table.

        Args:
            config: What defines it.
            store: Holds the chunks of its items; may be shared by tables of the same signature.
            rng: Source of all its random picks.
            number: By which a log knows it.
            durable: Whether it notes for a log which items leave.
            key_salt: See `Items`.
        """
        self.number, self._key_salt = number, key_salt
        self.config = self.declared = config  # as it is now, and as its clients create it: see ADR 0038
        self.former: deque[TableConfig] = deque(maxlen=_MAX_FORMER)  # before each change in use
        self.fencing_token = 0  # the greatest of a learner that was heard of
        self.times = InsertionTimes()
        self.store = store
        self.durable = durable
        self._rng = rng
        self.limiter = RateLimiter(config.rate_limiter)
        self._ref_counts = ChunkRefCounts(store)
        self.items: Items
        self._selectors: SelectorPair
        self._coming: tuple[SelectorConfig, int]  # of the coming sampler, and below which slot it has the items
        self._sampler: ItemSampler
        self.counters: Counters
        self.dropped = False  # set when it is no longer one of the server's tables
        self._removed: list[Ints]  # slots emptied since the last record of the log
        self._era = self._items_era = self._limiter_era = 0  # now, and since when items and limiter are what they are
        self._clear(first_number=0)

    def check_there(self) -> None:
        """Raise NotFound if it was dropped; whoever holds a table while others act must ask again."""
        if self.dropped:
            raise NotFound(f"table {self.config.name!r} was dropped", reason=Reason.UNKNOWN_TABLE)

    @property
    def size(self) -> int:
        """Items in the table."""
        return self.items.count

    @property
    def held_count(self) -> int:
        """Items in the table, and those that are on their way to a reader and would come back if that fails."""
        return self.items.count + self.items.lent_count

    @property
    def held_bytes(self) -> int:
        """Bytes of the chunks that items of this table need, and of their payloads."""
        return self._ref_counts.size_bytes + self.items.payload_bytes

    @property
    def total_weight(self) -> float:
        """Sum of sampler weights."""
        return self._selectors.sampler.total_weight

    def can_insert(self) -> bool:
        """True if the rate limiter admits an insert, of any size."""
        return self.limiter.can_insert(self.size)

    def can_sample(self, batch_size: int = 1, without_replacement: bool = False) -> bool:
        """True if a batch can be drawn now."""
        return self.limiter.can_sample(self.size) and self.has_draws(batch_size, without_replacement)

    def has_draws(self, batch_size: int, without_replacement: bool = False) -> bool:
        """True if the table has enough items for a batch, regardless of the rate limiter."""
        pickable = self._selectors.sampler.pickable
        if without_replacement and pickable < batch_size:
            return False
        return self._sampler.left >= batch_size if self.config.max_times_sampled else pickable > 0

    def check_batch_size(self, batch_size: int, without_replacement: bool) -> None:
        """Raise InvalidArgument if a full table could not serve such a batch."""
        draws = self.config.max_items * (1 if without_replacement else self.config.max_times_sampled)
        if draws and batch_size > draws:
            raise InvalidArgument(
                f"batch_size is {batch_size}, but table {self.config.name!r} with max_items {self.config.max_items} "
                f"has at most {draws} samples to give at a time"
            )

    def check_epochs(self) -> None:
        """Raise FailedPrecondition unless it can be drawn by epochs."""
        kind, limit = self.config.sampler.kind, self.config.max_times_sampled
        if kind is not SelectorKind.UNIFORM or limit:
            raise FailedPrecondition(
                f"table {self.config.name!r} has the sampler {kind.value} and max_times_sampled {limit}: "
                "epochs need the uniform sampler and 0",
                reason=Reason.TABLE_UNSUITABLE,
            )

    def fewer(self, batch_size: int, without_replacement: bool) -> int:
        """Return the number of items that a smaller batch may have now; 0 if there are none or as many as asked."""
        pickable = self._selectors.sampler.pickable
        most = self._sampler.left if self.config.max_times_sampled else batch_size
        most = min(most, pickable if without_replacement else batch_size)
        return most if self.limiter.can_sample(self.size) and most < batch_size else 0

    def insert(self, new: NewItems) -> Ints:
        """Insert items whose chunks are in the store; those the remover picks leave when the table is full.

        Returns:
            Slots of the new items that are still there afterwards, [M].
        """
        count, number, evictions = len(new.lengths), self.items.inserted, self.counters.evictions
        self.limiter.inserted(count, self.size + count)
        self.counters.inserts += count
        added, most = [_NO_SLOTS], min(self.config.max_items, self.items.capacity)  # which `shrink` may have lowered
        for start in range(0, count, most):  # one pass, except for batches larger than the table
            part = new.part(start, start + most)
            excess = self.size + len(part.lengths) - most
            if excess > 0:
                self._evict(excess)
            added.append(self._add(part))
        self._shrink_to_bytes()
        slots = np.concatenate(added)
        if self.counters.evictions > evictions:  # perhaps some of the new ones
            slots = slots[self.items.has(slots, np.arange(number, number + count))]
        return slots

    def draw(
        self,
        batch_size: int,
        without_replacement: bool = False,
        counted: int | None = None,
        seed: int | None = None,
        rng: np.random.Generator | None = None,
        epochs: Epochs | None = None,
        now_s: float | None = None,
    ) -> SampledItems:
        """Draw a batch; `has_draws` must hold. Items sampled often enough leave the table.

        The rate limiter counts `counted` samples, or the batch's size if that is None. The chunks stay until the
        caller releases them. With a seed, the same items at the same slots give the same batch, and with `rng`, in the
        same state, too. With `epochs` the batch has the next items of these, fewer at the end of one. At the Unix time
        `now_s`, if given, the batch says how long each item has been in the table. The caller says by `arrived` or
        `came_back` what became of the batch.

        Raises:
            FailedPrecondition: There is a seed, but the table does not draw at random, or not without a limit; or it
                cannot be drawn by epochs.
        """
        total_weight, size = self.total_weight, self.size
        if epochs is not None:
            self.check_epochs()  # it may have been changed since the call was opened
            slots, exhausted = epochs.take(self.items, batch_size, self.counters.inserts), _NO_SLOTS
            probabilities = self._sampler.use(slots)
        elif seed is None:
            slots, probabilities, exhausted = self._sampler.sample(batch_size, without_replacement, rng)
        else:
            slots, probabilities, exhausted = *self._sampler.sample_seeded(batch_size, seed), _NO_SLOTS
        table_s = None if now_s is None else self.times.ages_s(self.items.ages(slots), self.items.inserted, now_s)
        drawn = locate(self.items, self.store, slots, probabilities, (size, total_weight), self._era, table_s)
        self.store.acquire(drawn.chunks)
        self.limiter.sampled(len(slots) if counted is None else counted)
        self.counters.samples += len(slots)
        self.counters.sampled_age += int(drawn.ages.sum())
        if self.config.max_times_sampled:
            self.items.begin_samples(slots)
            self._selectors.remove_from_remover(exhausted)
            self.items.lend(exhausted)
        return drawn

    def arrived(self, keys: NDArray[np.uint64], eras: Ints) -> None:
        """Note that samples of items by key [N], drawn in eras [N], have arrived.

        Items that were sampled often enough are gone for good.
        """
        if not self.config.max_times_sampled:
            return
        slots, _ = self.items.find(keys[eras >= self._items_era], with_lent=True)
        slots = slots[self.items.underway(slots) > 0]  # a count below 0 would wrap
        self.items.end_samples(slots)
        distinct = np.unique(slots)
        self._forget(distinct[self.items.is_lent(distinct) & (self.items.underway(distinct) == 0)])

    def came_back(self, keys: NDArray[np.uint64], ages: Ints, eras: Ints, counted: int | None = None) -> None:
        """Take back a sample that did not arrive: the items are as if they had not been drawn.

        Items that were sampled often enough are in the table again, in the place they had. What has left the table
        since by itself stays away.

        Args:
            keys: Keys of the items, which may repeat, [N].
            ages: How old they were, [N].
            eras: In which era each was drawn, [N].
            counted: Samples that the rate limiter counted; None for as many as there are keys.
        """
        present = eras >= self._items_era
        keys, ages = keys[present], ages[present]
        slots, found = self.items.find(keys, with_lent=True)
        if self.config.max_times_sampled:
            underway = self.items.underway(slots) > 0
            slots, ages = slots[underway], ages[found][underway]
            self.items.end_samples(slots)
        else:
            ages = ages[found]
        again = self._sampler.undo(slots)
        if len(again):
            self.items.take_back(again)
            self._selectors.put_back(again, self.items.priorities[again], self.items.oldest_first)
            self._sampler.add(again)
        if eras.min(initial=self._era) >= max(self._items_era, self._limiter_era):
            self.limiter.unsampled(len(slots) if counted is None else counted)
        self.counters.samples -= len(slots)
        self.counters.sampled_age -= int(ages.sum())

    def give_up(self, size_bytes: int) -> int:
        """Evict, of a table that holds something, about so many bytes of chunks and payloads; return how many items.

        What is on its way to readers goes first, as arrived.
        """
        if self.items.lent_count:
            self._forget(self.items.lent())
            return 0
        evicted = max(1, int(min(size_bytes / max(self.held_bytes, 1), 1.0) * self.size))
        self._evict(evicted)
        self.limiter.full(self.size)
        return evicted

    def note_fencing_token(self, fencing_token: int) -> None:
        """Refuse older fencing tokens from now on.

        Raises:
            FailedPrecondition: It is not 0 and older than one that came before.
        """
        if 0 < fencing_token < self.fencing_token:
            raise FailedPrecondition(
                f"fencing token {fencing_token} was superseded by {self.fencing_token}: another learner trains now",
                reason=Reason.FENCING_TOKEN_SUPERSEDED,
            )
        self.fencing_token = max(self.fencing_token, fencing_token)

    def update_priorities(
        self, keys: NDArray[np.uint64], priorities: NDArray[np.float64], fencing_token: int = 0
    ) -> int:
        """Set priorities [N] of items by key [N]; the last of a repeated key counts. Return how many were found.

        Raises:
            FailedPrecondition: `fencing_token` is not 0 and older than one that came before; nothing was set.
        """
        self.note_fencing_token(fencing_token)
        slots, found = self.items.find(keys)
        unique, last = np.unique(slots[::-1], return_index=True)
        self._sampler.discard(unique)
        newest = priorities[found][::-1][last]
        self._selectors.update(unique, newest)
        self.items.priorities[unique] = newest
        self._sampler.add(unique)
        self.counters.priority_updates += len(slots)
        self.counters.unknown_keys += len(keys) - len(slots)
        return len(slots)

    def delete(self, keys: NDArray[np.uint64]) -> int:
        """Remove items by key [N], also those on their way to a reader; return how many were there."""
        slots, _ = self.items.find(keys, with_lent=True)
        slots = np.unique(slots)
        self.counters.unknown_keys += len(keys) - len(slots)
        self.delete_slots(slots)
        return len(slots)

    def delete_slots(self, slots: Ints) -> None:
        """Remove the items at slots [N], all different and in use; those that are lent do not come back."""
        lent = self.items.is_lent(slots)
        self._remove(slots[~lent])
        self._forget(slots[lent])

    def reset(self, release: Callable[[Ints], None] | None = None) -> int:
        """Remove every item and zero the counters; return how many items there were.

        `release` takes the chunks that the items needed, which are let go of at once if it is None.
        """
        removed = self.size
        leaving = [*self._removed, self.items.held()] if self.durable else []
        self.limiter.reset()
        (release or self.store.release)(self._ref_counts.clear())
        self._clear(self.items.inserted)  # numbering continues, so that no key ever names two items
        self._removed = leaving
        return removed

    def ages_of(
        self, min_age: int, max_age: int | None, since_s: float | None, until_s: float | None
    ) -> tuple[int, int]:
        """Return the least and the greatest age of items that meet every condition; see `InsertionTimes.numbers`."""
        inserted = self.items.inserted
        youngest, oldest = min_age, inserted if max_age is None else max_age
        if since_s is not None or until_s is not None:
            first, end = self.times.numbers(since_s, until_s, inserted)
            youngest, oldest = max(youngest, inserted - end), min(oldest, inserted - 1 - first)
        return youngest, oldest

    def chunks(self) -> Ints:
        """Return the chunks that items of this table need."""
        return self._ref_counts.chunks()

    def drop_items_of(self, chunk: int) -> int:
        """Remove every item that needs a corrupt chunk; return how many there were."""
        leaving = []
        distance = 0  # steps from the start of an earlier chunk to that of the corrupt one
        slots = self.items.held()
        first, ends = self.items.first_chunks[slots], self.items.ends(slots)
        while chunk != NONE and distance < self.config.max_item_steps:
            leaving.append(slots[(first == chunk) & (ends > distance)])
            chunk = self.store.previous_slot(chunk)
            distance += int(self.store.step_counts(np.array([chunk]))[0]) if chunk != NONE else 0
        gone = np.concatenate(leaving)
        self.counters.corrupt_items += len(gone)
        self.delete_slots(gone)
        return len(gone)

    @property
    def has_removed(self) -> bool:
        """Whether `drain_removed` has anything to return."""
        return bool(self._removed)

    def drain_removed(self) -> Ints:
        """Return the slots that were emptied since this was last asked, of which some may be in use again."""
        removed, self._removed = self._removed, []
        return np.concatenate(removed) if removed else _NO_SLOTS

    @property
    def count_id(self) -> int:
        """Number of the counters: another one after a reset, and for a table created again; never 0."""
        number = (self.number - 1) % (2**20 - 1) + 1  # of 64 bits there are 20 left
        return (number << 44) + self.items.inserted - self.counters.inserts

    @property
    def stats(self) -> TableStats:
        """Every number of the table beside its items."""
        return TableStats(self.counters, self.items.inserted, self.limiter.state)

    def restore(self, stats: TableStats, items: RestoredItems) -> None:
        """Fill an empty table with the items from before the restart, whose chunks are in the store.

        Args:
            stats: Its numbers.
            items: Its items, in the order of their insertion.
        """
        self._clear(stats.inserted)
        self.counters = replace(stats.counters)
        self.items.restore(items)
        self._selectors.insert(items.slots, items.new.priorities)
        self._sampler.add(items.slots)
        self._ref_counts.acquire(self._spans(items.slots))
        self.limiter.restore(stats.limiter)
        self._remove(self._spent(self.config.max_times_sampled))
        self._shrink_to_bytes()

    def check_memory(self, config: TableConfig) -> None:
        """Raise MemoryError if there is no memory for what `reconfigure` makes for a configuration."""
        capacity = slots_of(config.max_items, config.max_times_sampled)
        if (capacity, capacity) != (self.items.capacity, len(self.items.lengths)):
            _ = Items(capacity), SelectorPair.make(config.sampler, config.remover, capacity)  # not backed by memory
        elif config.sampler != self.config.sampler:
            _ = make_selector(config.sampler, capacity)  # all that `_weigh` makes

    def shrink(self, config: TableConfig, count: int) -> Ints | None:
        """Take a step towards a configuration: evict about `count` of the items that exceed it, move or weigh so many.

        Returns:
            The slots of items that have moved, which a log must be told of again, [M]; None if nothing is left to do.
        """
        capacity = slots_of(config.max_items, config.max_times_sampled)
        if (excess := self.size - config.max_items) > 0:
            self._evict(min(excess, count))
        elif config.max_bytes and self.held_count and (excess := self.held_bytes - config.max_bytes) > 0:
            self.give_up(min(excess, self.held_bytes * count // max(self.size, 1)))
        elif (excess := self.held_count - capacity) > 0:
            self._forget(self.items.lent()[:excess])
        elif min(self.items.used, self.items.capacity) > capacity:
            self.items.narrow(capacity)
        elif self.items.used > capacity:
            return self._move_from(max(self.items.used - count, capacity))
        elif not self._weigh(config.sampler, count):
            spent = self._spent(config.max_times_sampled)
            if not len(spent):
                return None
            self._remove(spent[:count])
        return _NO_SLOTS

    def reconfigure(self, config: TableConfig, *, limiter_is_on: bool) -> None:
        """Take another capacity, rate limiter, `max_times_sampled` or priority exponent, for which it was shrunk.

        A rate limiter that differs, or is switched on or off, begins with neither side ahead. What is on its way to
        readers counts as arrived if the capacity differs, or how items are picked.

        Raises:
            MemoryError: There is no memory for so many items; nothing was changed.
        """
        same_limiter = (config.rate_limiter, limiter_is_on) == (self.config.rate_limiter, self.limiter.is_on)
        if _places_items(config) != _places_items(self.config):
            self._rebuild(config)
        is_as_full = config.max_bytes == self.config.max_bytes or 0 < config.max_bytes < (self.config.max_bytes or inf)
        full_size = self.limiter.full_size if is_as_full else 0
        self.config = config
        if not same_limiter:
            self.limiter = RateLimiter(config.rate_limiter, is_on=limiter_is_on)
            self.limiter.begin(self.size, full_size)
            self._limiter_era = self._begin_era()

    def _move_from(self, start: int) -> Ints:
        """Move the items of slots from `start` on to lower ones, and forget these slots; return where they are."""
        slots = self.items.held(start)
        is_lent = self.items.is_lent(slots)
        self._forget(slots[is_lent])
        slots = slots[~is_lent]
        places = self.items.move(slots)
        self.items.retract(start)
        self._selectors.move(slots, places, self.items.priorities[places])
        self.note_removed(slots)
        return places

    def _weigh(self, sampler: SelectorConfig, count: int) -> bool:
        """Give the items of `count` more slots to the sampler that is to come; return False once it has all.

        Until then the present one draws, and every change goes to both.
        """
        if sampler == self.config.sampler:
            return False
        if self._selectors.coming is None or self._coming[0] != sampler:
            self._selectors = replace(self._selectors, coming=make_selector(sampler, len(self.items.lengths)))
            self._coming = sampler, 0
        assert self._selectors.coming is not None
        start = self._coming[1]
        slots = self.items.held(start, count)
        slots = slots[~self.items.is_lent(slots)]
        self._selectors.coming.insert(slots, self.items.priorities[slots])
        self._coming = sampler, start + count
        return start < self.items.used

    def _rebuild(self, config: TableConfig) -> None:
        """Take another capacity, or the sampler that was to come. What is on its way to readers counts as arrived."""
        capacity, selectors = slots_of(config.max_items, config.max_times_sampled), self._selectors
        if config.sampler != self.config.sampler:
            selectors = selectors.exchanged(is_remover=config.remover == config.sampler)
        if (capacity, capacity) != (self.items.capacity, len(self.items.lengths)):
            selectors = selectors.resized(capacity, self.items.used)
            self.items.resize(capacity)
        self._forget(self.items.lent())
        self.items.forget_underway()
        self._take(self.items, selectors, config)
        if config.max_times_sampled:
            self._sampler.add(self.items.live())

    def _clear(self, first_number: int) -> None:
        config = self.config
        self.counters = Counters()
        self._removed = []
        capacity = slots_of(config.max_items, config.max_times_sampled)
        self._take(
            Items(capacity, first_number=first_number, key_salt=self._key_salt),
            SelectorPair.make(config.sampler, config.remover, capacity),
            config,
        )

    def _take(self, items: Items, selectors: SelectorPair, config: TableConfig) -> None:
        """Continue with other columns and selectors."""
        self._items_era = self._begin_era()
        self.items, self._selectors = items, selectors
        self._sampler = ItemSampler(items, selectors.sampler, config.max_times_sampled, self._rng)

    def _begin_era(self) -> int:
        self._era += 1
        return self._era

    def _spent(self, limit: int) -> Ints:
        """Return the slots of items that were sampled as often as they may be, [M]."""
        if not limit:
            return _NO_SLOTS
        slots = self.items.live()
        return slots[self.items.times_sampled[slots] >= limit]

    def _add(self, new: NewItems) -> Ints:
        without_room = self.held_count + len(new.lengths) - self.items.capacity
        if without_room > 0:  # more is on its way than there is room for: the oldest of it counts as arrived
            self._forget(self.items.lent()[:without_room])
        slots = self.items.add(new)
        self._selectors.insert(slots, new.priorities)
        self._sampler.add(slots)
        self._ref_counts.acquire(self._spans(slots))
        return slots

    def _remove(self, slots: Ints) -> None:
        self._sampler.discard(slots)
        self._selectors.remove(slots)
        self._forget(slots)

    def _forget(self, slots: Ints) -> None:
        self._ref_counts.release(self._spans(slots))
        self.items.remove(slots)
        self.note_removed(slots)

    def note_removed(self, slots: Ints) -> None:
        """Have the next record of the log report that slots [N] are empty."""
        if self.durable and len(slots):
            self._removed.append(slots)

    def _evict(self, count: int) -> None:
        leaving = self._selectors.remover.take(count, self._rng)
        if len(leaving) < count:  # a prioritized remover does not pick items of priority 0
            rest = np.setdiff1d(self.items.live(), leaving)
            leaving = np.concatenate((leaving, rest[: count - len(leaving)]))
        self.counters.evictions += len(leaving)
        self._remove(leaving)

    def _shrink_to_bytes(self) -> None:
        limit = self.config.max_bytes
        while limit and self.held_bytes > limit and self.held_count:
            self.give_up(self.held_bytes - limit)

    def _spans(self, slots: Ints) -> Ints:
        items = self.items
        return self.store.spans(items.first_chunks[slots].astype(np.int64), items.ends(slots))


def _places_items(config: TableConfig) -> tuple[object, ...]:
    """Return the settings that decide the places of a table's items and how it picks them."""
    return config.max_items, config.max_times_sampled, config.sampler, config.remover


_NO_SLOTS: Ints = np.empty(0, dtype=np.int64)
