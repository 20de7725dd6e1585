"""One table over several shards: what of a batch comes from which, and when."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tidemill.replay.sampling.plan import Draw, Plan
from tidemill.replay.table_config import RateLimiterConfig, TableConfig, shard_config


def systematic_split(count: int, weights: Sequence[float], rng: np.random.Generator) -> list[int]:
    """Split `count` draws over shards in proportion to their weights.

    One random offset serves all (systematic sampling; Madow & Madow, 1944): each shard gets its exact share rounded up
    or down, and on average exactly its share.

    Args:
        count: Draws to split, 0 or more.
        weights: Total weight of each shard, finite and not negative, at least one of them more than 0.
        rng: Source of the offset.

    Returns:
        Draws of each shard; their sum is `count`, and a shard without weight has none.
    """
    heaped = np.cumsum(np.asarray(weights, dtype=np.float64))
    offset = rng.random()
    edges = np.floor(np.concatenate(([0.0], heaped / heaped[-1] * count)) + offset).astype(np.int64)
    edges[edges == edges[-1]] = count  # offset + count may round up to the next whole number
    counts: list[int] = np.diff(edges).tolist()
    return counts


def capped_split(count: int, weights: Sequence[float], caps: Sequence[int], rng: np.random.Generator) -> list[int]:
    """Split like `systematic_split`, but give no shard more than its cap; what is too much goes to the others.

    Args:
        count: Draws to split, at most the sum of the caps of all shards with weight.
        weights: As for `systematic_split`.
        caps: Most draws of each shard, 0 or more.
        rng: Source of the offsets.
    """
    parts, left = [0] * len(weights), count
    while left:
        open_weights = [weight if part < cap else 0.0 for weight, part, cap in zip(weights, parts, caps, strict=True)]
        more = systematic_split(left, open_weights, rng)
        parts = [min(part + extra, cap) for part, extra, cap in zip(parts, more, caps, strict=True)]
        left = count - sum(parts)
    return parts


@dataclass(slots=True)
class ShardState:
    """State of a live shard.

    Attributes:
        items: Items in its table.
        left: Those of them that later draws may ask for.
        total_weight: Sum of the sampler's weights of all.
        diff: How far its inserts are ahead by its rate limiter's count, in samples.
        asked_items: Items asked for and not answered.
        asked_counted: Samples it is to count for what is not answered.
    """

    items: int = 0
    left: int = 0
    total_weight: float = 0.0
    diff: float = 0.0
    asked_items: int = 0
    asked_counted: int = 0

    @property
    def expected_diff(self) -> float:
        """The diff once everything asked for is answered."""
        return self.diff - self.asked_counted


@dataclass(slots=True)
class _Limit:
    """The rate limiter of the whole table.

    Each shard holds back its own inserts; the samples of all are held back here. Both sides count the same: what a
    batch counts goes to the shard whose inserts are furthest ahead, wherever its items come from. A shard whose
    inserts wait always lets samples pass, so that the two sides cannot wait for each other.
    """

    config: RateLimiterConfig
    shard_buffer: float
    shard_items: int
    is_queue: bool
    reached: bool = field(default=False)

    def observe(self, states: Collection[ShardState]) -> None:
        """Take how many items the shards hold; when the last is lost, other than in a queue, the table begins again.

        A shard that takes no more items also reaches the minimum: its writers would wait for samples, and these for it.
        """
        items, most = sum(state.items for state in states), max(state.items for state in states)
        kept = self.reached and (items > 0 or self.is_queue)
        self.reached = kept or items >= self.config.min_size or most >= self.shard_items

    def admits(self, states: Collection[ShardState]) -> bool:
        """True if the rate limiter admits a batch."""
        if not self.reached or not self.config.samples_per_insert:
            return self.reached
        diffs = [state.expected_diff for state in states]
        return sum(diffs) >= -self.config.error_buffer or max(diffs) > self.shard_buffer


class ShardedTable:
    """Decides how batches of a table are drawn from its shards, in proportion to their weights."""

    def __init__(
        self, config: TableConfig, shard_count: int, rng: np.random.Generator, *, without_replacement: bool = False
    ) -> None:
        """Begin without a shard.

        Args:
            config: The whole table, see `shard_config`.
            shard_count: Over how many shards it is divided.
            rng: Source of all random splits.
            without_replacement: Whether no item may come twice in a batch: no shard is then asked for more than it has.
        """
        self._rng = rng
        self._exhaustible, self._is_queue = config.max_times_sampled > 0, config.max_times_sampled == 1
        self._without_replacement = without_replacement
        part = shard_config(config, shard_count)
        self._limit = _Limit(
            config.rate_limiter,
            shard_buffer=part.rate_limiter.error_buffer,
            shard_items=min(part.rate_limiter.queue_size or part.max_items, part.max_items),
            is_queue=self._exhaustible,
        )
        self._takes_beyond_queue = part.max_items if self._exhaustible and part.rate_limiter.queue_size else 0
        self._states: dict[str, ShardState] = {}
        self._lacks_items = False  # at the last plan

    @property
    def states(self) -> Mapping[str, ShardState]:
        """Every live shard by name."""
        return self._states

    @property
    def items(self) -> int:
        """Items of all live shards."""
        return sum(state.items for state in self._states.values())

    @property
    def total_weight(self) -> float:
        """Total weight of all live shards."""
        return sum(state.total_weight for state in self._states.values())

    @property
    def is_held_back(self) -> bool:
        """Whether a batch would have to wait now, for items or for the rate limiter."""
        return self._lacks_items or not self._is_admitted

    @property
    def _is_admitted(self) -> bool:
        return bool(self._states) and self._limit.admits(self._states.values())

    def join(self, shard: str) -> None:
        """Add a live shard. Its table counts as empty until its first report."""
        self._states.setdefault(shard, ShardState())

    def leave(self, shard: str) -> None:
        """A shard is no longer live: nothing is drawn from it, and what it was asked for is forgotten."""
        self._states.pop(shard, None)
        if self._exhaustible and not self._states:
            self._limit.reached = False  # it may come back with nothing

    def asked(self, draw: Draw) -> None:
        """A live shard was asked for something."""
        state = self._states[draw.shard]
        state.asked_items += draw.items
        state.asked_counted += draw.counted or 0

    def answered(self, draw: Draw, items: int, total_weight: float, diff: float) -> None:
        """A live shard answered, and said how its table is now."""
        state = self._states[draw.shard]
        state.asked_items -= draw.items
        state.asked_counted -= draw.counted or 0
        state.items, state.total_weight, state.diff = items, total_weight, diff
        state.left = max(items - draw.items, 0) if self._is_queue else items  # the answer is from before its draw
        self._limit.observe(self._states.values())

    def plan(self, batch_size: int) -> Plan | None:
        """Return how the next batch is drawn; None while it has to wait."""
        if not self._is_admitted:
            return None
        weights = {shard: self._available_weight(state) for shard, state in self._states.items()}
        self._lacks_items = not sum(weights.values()) > 0 or self._most_items(weights) < batch_size
        if self._lacks_items:
            return self._plan_of_full(weights, batch_size)
        # counted without a ratio, too: one may be set while the table is in use
        return Plan(weights, self._draws(weights, batch_size, counted=batch_size))

    def replan(self, plan: Plan, lost: Collection[Draw]) -> Plan | None:
        """Return how the lost draws of a batch are made up for by the shards that it still has; None if by none.

        Proportional shares keep their proportions when one is taken away, so the items of the other draws, made by
        the first plan, have the shares of the new one, too. Without replacement nobody makes up for items: a second
        draw of a shard could repeat some of its first.
        """
        gone = {draw.shard for draw in lost}
        weights = {s: weight for s, weight in plan.weights.items() if s not in gone and s in self._states}
        items, counted = sum(draw.items for draw in lost), sum(draw.counted or 0 for draw in lost)
        if not sum(weights.values()) > 0 or self._most_items(weights) < items or (self._without_replacement and items):
            return None
        return Plan(weights, self._draws(weights, items, counted))

    def may_wait(self, draw: Draw) -> bool:
        """True if a draw may wait for new items: other readers took those it was to get, and no shard has as many."""
        others = sum(self._cap(shard) for shard in self._states if shard != draw.shard)
        beyond = draw.items - self._states[draw.shard].left  # asked for before it was there
        return self._exhaustible and others < (beyond if beyond > 0 else draw.items)

    def probe(self, shard: str) -> Draw:
        """A draw of no items, by which a live shard reports the state of its table.

        Before the whole table reaches its minimum size, inserts do not count: the ones a shard has counted are taken
        off again.
        """
        diff = self._states[shard].expected_diff
        return Draw(shard, 0, 0 if self._limit.reached else max(math.ceil(diff), 0))

    def _draws(self, weights: Mapping[str, float], items: int, counted: int) -> tuple[Draw, ...]:
        return self._counted(dict(zip(weights, self._split(weights, items), strict=True)), counted)

    def _plan_of_full(self, weights: Mapping[str, float], batch_size: int) -> Plan | None:
        """Plan a batch that lacks items from the shards whose queue is full; None if there is none, or no room there.

        Their writers wait for samples. A server admits more of their items only for a draw that waits for these.
        """
        parts = {shard: self._cap(shard) for shard, weight in weights.items() if weight > 0}
        lacking = batch_size - sum(parts.values())
        for shard, cap in parts.items():
            if cap >= self._limit.shard_items:
                parts[shard] += (more := max(min(lacking, self._takes_beyond_queue - cap), 0))
                lacking -= more
        return Plan(weights, self._counted(parts, batch_size)) if not lacking else None

    def _counted(self, parts: dict[str, int], counted: int) -> tuple[Draw, ...]:
        counting = max(self._states, key=lambda shard: (self._states[shard].expected_diff, parts.get(shard, 0)))
        parts.setdefault(counting, 0)
        draws = (Draw(shard, count, counted if shard == counting else 0) for shard, count in parts.items())
        return tuple(draw for draw in draws if draw.items or draw.counted)

    def _split(self, weights: Mapping[str, float], items: int) -> list[int]:
        if not (self._exhaustible or self._without_replacement):
            return systematic_split(items, list(weights.values()), self._rng)
        return capped_split(items, list(weights.values()), [self._cap(shard) for shard in weights], self._rng)

    def _most_items(self, weights: Mapping[str, float]) -> float:
        """Return how many items a batch may have."""
        if not (self._exhaustible or self._without_replacement):
            return math.inf
        return sum(self._cap(shard) for shard, weight in weights.items() if weight > 0)

    def _cap(self, shard: str) -> int:
        """Return how many items may be asked of a shard: one that may be sampled so often is not promised twice."""
        state = self._states[shard]
        return max(state.left - state.asked_items, 0) if self._exhaustible else state.items

    def _available_weight(self, state: ShardState) -> float:
        if not self._exhaustible or not state.items:
            return state.total_weight
        return state.total_weight * max(state.left - state.asked_items, 0) / state.items
