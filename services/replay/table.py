"""One table: what is inserted, sampled, changed and removed. No locks, waits or clocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.replay.chunk_store import ChunkStore
from services.replay.holdings import Holdings
from services.replay.items import Items, NewItems
from services.replay.rate_limiter import RateLimiter
from services.replay.selectors import SelectorPair
from tidemill.errors import InvalidArgument
from tidemill.replay.batch import Blocks
from tidemill.replay.table_config import TableConfig

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Counters:
    """Events of a table since it was created or reset.

    Attributes:
        inserts: Items inserted.
        samples: Items sampled.
        evictions: Items removed because the table was full.
        priority_updates: Priorities set.
        unknown_keys: Keys of updates and deletions that were not in the table.
        sampled_age: Sum over sampled items of how many items were inserted after them.
    """

    inserts: int = 0
    samples: int = 0
    evictions: int = 0
    priority_updates: int = 0
    unknown_keys: int = 0
    sampled_age: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """B items drawn from a table and the C chunks they lie in.

    Attributes:
        keys: uint64 [B].
        probabilities: Probability with which each was chosen, float64 [B].
        first_rows: Row of each item's first step over the steps of all chunks, int64 [B].
        lengths: Steps of each item, int64 [B].
        payloads: One for each item, or empty when none has one.
        step_counts: Steps of each chunk, int64 [C]; chunks are ordered by stream and position, each once.
        params_versions: Parameter version of each chunk, uint64 [C].
        blocks: The chunks' blocks, one entry for each column.
        table_items: Items in the table at the draw.
        priority_mass: Sum of sampler weights at the draw.
    """

    keys: NDArray[np.uint64]
    probabilities: NDArray[np.float64]
    first_rows: Ints
    lengths: Ints
    payloads: tuple[bytes, ...]
    step_counts: Ints
    params_versions: NDArray[np.uint64]
    blocks: tuple[Blocks, ...]
    table_items: int
    priority_mass: float


class Table:
    """Items over the chunks of a store, picked by a sampler and evicted by a remover."""

    def __init__(self, config: TableConfig, store: ChunkStore, rng: np.random.Generator) -> None:
        """Create an empty table.

        Args:
            config: What defines it.
            store: Holds the chunks of its items; may be shared by tables of the same signature.
            rng: Source of all its random picks.
        """
        self.config = config
        self.store = store
        self._rng = rng
        self.limiter = RateLimiter(config.rate_limiter)
        self._holdings = Holdings(store)
        self._clear()

    @property
    def size(self) -> int:
        """Items in the table."""
        return self._items.count

    @property
    def held_bytes(self) -> int:
        """Bytes of the chunks that items of this table need."""
        return self._holdings.size_bytes

    @property
    def priority_mass(self) -> float:
        """Sum of sampler weights."""
        return self._selectors.sampler.mass

    def can_insert(self) -> bool:
        """Return whether the rate limiter admits an insert, of whatever size."""
        return self.limiter.can_insert(self.size)

    def can_sample(self, batch_size: int = 1, without_replacement: bool = False) -> bool:
        """Return whether a batch can be drawn now."""
        return self.limiter.can_sample(self.size) and self.has_draws(batch_size, without_replacement)

    def has_draws(self, batch_size: int, without_replacement: bool = False) -> bool:
        """Return whether the items here are enough for a batch, whatever the rate limiter says."""
        pickable = self._selectors.sampler.pickable
        if without_replacement and pickable < batch_size:
            return False
        return self._draws >= batch_size if self.config.max_times_sampled else pickable > 0

    def check_batch_size(self, batch_size: int, without_replacement: bool) -> None:
        """Raise InvalidArgument if a full table could not serve such a batch."""
        draws = self.config.max_items * (1 if without_replacement else self.config.max_times_sampled)
        if draws and batch_size > draws:
            raise InvalidArgument(
                f"batch_size is {batch_size}, but table {self.config.name!r} with max_items {self.config.max_items} "
                f"has at most {draws} samples to give at a time"
            )

    def insert(self, new: NewItems) -> None:
        """Insert items whose chunks are in the store; those the remover picks leave when the table is full."""
        count = len(new.lengths)
        self.limiter.inserted(count, self.size + count)
        self.counters.inserts += count
        for start in range(0, count, self.config.max_items):  # one pass but for batches larger than the table
            part = new.part(start, start + self.config.max_items)
            excess = self.size + len(part.lengths) - self.config.max_items
            if excess > 0:
                self._evict(excess)
            self._add(part)
        self._shrink_to_bytes()

    def sample(self, batch_size: int, without_replacement: bool = False, counted: int | None = None) -> Sample:
        """Draw a batch; `has_draws` must hold. Items sampled often enough leave the table.

        The rate limiter counts `counted` samples, or the batch's size if that is None.
        """
        mass, size = self.priority_mass, self.size
        slots, probabilities, exhausted = self._pick(batch_size, without_replacement)
        drawn = self._read(slots, probabilities, size, mass)
        self.limiter.sampled(batch_size if counted is None else counted)
        self.counters.samples += batch_size
        self.counters.sampled_age += int(self._items.ages(slots).sum())
        if len(exhausted):
            self._selectors.remove_from_remover(exhausted)
            self._forget(exhausted)
        return drawn

    def update_priorities(self, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> int:
        """Set priorities [N] of items by key [N]; the last of a repeated key counts. Return how many were found."""
        slots, found = self._items.find(keys)
        unique, last = np.unique(slots[::-1], return_index=True)
        self._draws -= self._draws_of(unique)
        self._selectors.update(unique, priorities[found][::-1][last])
        self._draws += self._draws_of(unique)
        self.counters.priority_updates += len(slots)
        self.counters.unknown_keys += len(keys) - len(slots)
        return len(slots)

    def delete(self, keys: NDArray[np.uint64]) -> int:
        """Remove items by key [N]; return how many were there."""
        slots, _ = self._items.find(keys)
        slots = np.unique(slots)
        self.counters.unknown_keys += len(keys) - len(slots)
        self._remove(slots)
        return len(slots)

    def reset(self) -> int:
        """Remove every item and zero the counters; return how many items there were."""
        removed = self.size
        self.limiter.reset()
        self._holdings.clear()
        self._clear()
        return removed

    def chunks(self) -> Ints:
        """Return the chunks that items of this table need."""
        return self._holdings.chunks()

    def _clear(self) -> None:
        config = self.config
        self.counters = Counters()
        self._items = Items(config.max_items)
        self._selectors = SelectorPair.make(config.sampler, config.remover, config.max_items)
        self._draws = 0  # samples that the items may still be given; counted only with max_times_sampled

    def _add(self, new: NewItems) -> None:
        slots = self._items.add(new)
        self._selectors.insert(slots, new.priorities)
        self._draws += self._draws_of(slots)
        self._holdings.add(self._spans(slots))

    def _remove(self, slots: Ints) -> None:
        self._draws -= self._draws_of(slots)
        self._selectors.remove(slots)
        self._forget(slots)

    def _forget(self, slots: Ints) -> None:
        self._holdings.remove(self._spans(slots))
        self._items.remove(slots)

    def _evict(self, count: int) -> None:
        leaving = self._selectors.remover.take(count, self._rng)
        if len(leaving) < count:  # a prioritized remover does not pick items of priority 0
            rest = np.setdiff1d(self._items.live(), leaving)
            leaving = np.concatenate((leaving, rest[: count - len(leaving)]))
        self.counters.evictions += len(leaving)
        self._remove(leaving)

    def _shrink_to_bytes(self) -> None:
        limit = self.config.max_bytes
        while limit and self.held_bytes > limit and self.size:
            excess = self.held_bytes - limit
            self._evict(max(1, int(excess / self.held_bytes * self.size)))

    def _spans(self, slots: Ints) -> Ints:
        items = self._items
        steps = items.offsets[slots].astype(np.int64) + items.lengths[slots]
        return self.store.spans(items.first_chunks[slots].astype(np.int64), steps)

    def _read(self, slots: Ints, probabilities: NDArray[np.float64], size: int, mass: float) -> Sample:
        items, store = self._items, self.store
        chunks, places = store.in_order(self._spans(slots))
        step_counts = store.step_counts(chunks)
        starts = np.cumsum(step_counts) - step_counts
        return Sample(
            keys=items.keys(slots),
            probabilities=probabilities,
            first_rows=starts[places[: len(slots)]] + items.offsets[slots],
            lengths=items.lengths[slots].astype(np.int64),
            payloads=items.payloads(slots),
            step_counts=step_counts,
            params_versions=store.params_versions(chunks),
            blocks=store.blocks.read(chunks, step_counts),
            table_items=size,
            priority_mass=mass,
        )

    def _pick(self, count: int, without_replacement: bool) -> tuple[Ints, NDArray[np.float64], Ints]:
        """Return slots [count], their probabilities, and which of them this used up, gone from the sampler."""
        sampler, mass = self._selectors.sampler, self.priority_mass
        slots, weights, exhausted = _NO_SLOTS, np.empty(0), _NO_SLOTS
        while len(slots) < count:  # again only for items that were picked more often than they may
            picked = self._pick_some(count - len(slots), without_replacement)
            slots = np.concatenate((slots, picked))
            weights = np.concatenate((weights, sampler.weights(picked)))
            if self.config.max_times_sampled:
                exhausted = np.concatenate((exhausted, self._use(picked)))
        return slots, weights / mass if sampler.random else np.ones(count), exhausted

    def _pick_some(self, count: int, without_replacement: bool) -> Ints:
        sampler, limit = self._selectors.sampler, self.config.max_times_sampled
        if without_replacement:
            return sampler.take(count, self._rng)
        if not limit:
            return sampler.draw(count, self._rng)
        if sampler.random:
            slots = sampler.draw(count, self._rng)
            return slots[self._items.times_sampled[slots] + _occurrences(slots) < limit]
        slots = sampler.take(count, self._rng)
        return np.repeat(slots, limit - self._items.times_sampled[slots].astype(np.int64))[:count]

    def _use(self, slots: Ints) -> Ints:
        """Count the samples of items; return those that may not be sampled again, gone from the sampler."""
        times = self._items.times_sampled
        np.add.at(times, slots, 1)
        self._draws -= len(slots)
        exhausted = np.unique(slots[times[slots] >= self.config.max_times_sampled])
        self._selectors.sampler.remove(exhausted)
        return exhausted

    def _draws_of(self, slots: Ints) -> int:
        limit = self.config.max_times_sampled
        if not limit:
            return 0
        slots = slots[self._selectors.sampler.can_pick(slots)]
        return limit * len(slots) - int(self._items.times_sampled[slots].sum())


_NO_SLOTS: Ints = np.empty(0, dtype=np.int64)


def _occurrences(values: Ints) -> Ints:
    """Return for each entry of [N] how many equal ones come before it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    positions = np.arange(len(values))
    starts = np.maximum.accumulate(np.where(np.r_[True, ordered[1:] != ordered[:-1]], positions, 0))
    counts = np.empty_like(values)
    counts[order] = positions - starts
    return counts
