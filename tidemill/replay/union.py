"""One table over several shards: what of a batch comes from which, and when. Decisions only, without I/O."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from tidemill.replay.split import capped_split, systematic_split
from tidemill.replay.table_config import RateLimiterConfig, TableConfig


@dataclass(frozen=True, slots=True)
class Draw:
    """What one shard is asked for.

    Attributes:
        shard: Name of the shard.
        items: Items it is to draw; 0 asks only how its table is.
        counted: Samples its rate limiter is to count.
    """

    shard: str
    items: int
    counted: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch.

    Attributes:
        masses: Mass of each shard by which the batch is split, as it was known then.
        draws: What is asked for; may name a shard that has nothing to draw, to have its limiter count.
    """

    masses: Mapping[str, float]
    draws: tuple[Draw, ...]

    def share(self, shard: str) -> float:
        """Return the probability with which an item of the batch comes from a shard."""
        return self.masses[shard] / sum(self.masses.values())


@dataclass(slots=True)
class ShardState:
    """What is known of a live shard.

    Attributes:
        items: Items in its table.
        mass: Sum of its sampler's weights.
        lead: How far its inserts are ahead by its rate limiter's count, in samples.
        asked_items: Items asked for and not answered.
        asked_counted: Samples it is to count for what is not answered.
    """

    items: int = 0
    mass: float = 0.0
    lead: float = 0.0
    asked_items: int = 0
    asked_counted: int = 0

    @property
    def expected_lead(self) -> float:
        """The lead once everything asked for is answered."""
        return self.lead - self.asked_counted


@dataclass(slots=True)
class _Limit:
    """The rate limiter of the whole table.

    Each shard holds back its own inserts; the samples of all are held back here. Both sides count the same: what a
    batch counts goes to the shard whose inserts are furthest ahead, wherever its items come from. A shard whose
    inserts wait always lets samples pass, so that the two sides cannot wait for each other.
    """

    config: RateLimiterConfig
    shard_buffer: float
    reached: bool = field(default=False)

    def observe(self, items: int) -> None:
        """Take how many items all shards hold; when the last is lost, the table begins again."""
        self.reached = items > 0 and (self.reached or items >= self.config.min_size)

    def admits(self, states: Collection[ShardState]) -> bool:
        """Return whether a batch may be drawn."""
        if not self.reached or not self.config.samples_per_insert:
            return self.reached
        leads = [state.expected_lead for state in states]
        return sum(leads) >= -self.config.error_buffer or max(leads) > self.shard_buffer


class UnionTable:
    """Decides how batches of a table are drawn from its shards, in proportion to their masses."""

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
        self._exhaustible, self._distinct = config.max_times_sampled > 0, without_replacement
        self._limit = _Limit(config.rate_limiter, config.rate_limiter.error_buffer / shard_count)
        self._states: dict[str, ShardState] = {}

    @property
    def states(self) -> Mapping[str, ShardState]:
        """Every live shard by name."""
        return self._states

    @property
    def items(self) -> int:
        """Items of all live shards."""
        return sum(state.items for state in self._states.values())

    @property
    def mass(self) -> float:
        """Mass of all live shards."""
        return sum(state.mass for state in self._states.values())

    @property
    def is_held_back(self) -> bool:
        """Whether a batch would have to wait now, for items or for the rate limiter."""
        return not self._states or not self._limit.admits(self._states.values())

    def join(self, shard: str) -> None:
        """A shard is live; until it says otherwise its table is empty."""
        self._states.setdefault(shard, ShardState())

    def leave(self, shard: str) -> None:
        """A shard is no longer live: nothing is drawn from it, and what it was asked for is forgotten."""
        self._states.pop(shard, None)

    def asked(self, draw: Draw) -> None:
        """A live shard was asked for something."""
        state = self._states[draw.shard]
        state.asked_items += draw.items
        state.asked_counted += draw.counted

    def answered(self, draw: Draw, items: int, mass: float, lead: float) -> None:
        """A live shard answered, and told how its table is now."""
        state = self._states[draw.shard]
        state.asked_items -= draw.items
        state.asked_counted -= draw.counted
        state.items, state.mass, state.lead = items, mass, lead
        self._limit.observe(self.items)

    def plan(self, batch_size: int) -> Plan | None:
        """Return how the next batch is drawn; None while it has to wait."""
        if self.is_held_back:
            return None
        masses = {shard: self._available_mass(state) for shard, state in self._states.items()}
        if not sum(masses.values()) > 0 or self._most_items(masses) < batch_size:
            return None
        counted = batch_size if self._limit.config.samples_per_insert else 0
        return Plan(masses, self._draws(masses, batch_size, counted))

    def replan(self, plan: Plan, lost: Collection[Draw]) -> Plan | None:
        """Return how the lost draws of a batch are made up for by the shards that it still has; None if by none.

        Proportional shares keep their proportions when one is taken away, so the items of the other draws, made by
        the first plan, have the shares of the new one, too.
        """
        gone = {draw.shard for draw in lost}
        masses = {s: mass for s, mass in plan.masses.items() if s not in gone and s in self._states}
        items, counted = sum(draw.items for draw in lost), sum(draw.counted for draw in lost)
        if not sum(masses.values()) > 0 or self._most_items(masses) < items:
            return None
        return Plan(masses, self._draws(masses, items, counted))

    def look(self, shard: str) -> Draw:
        """Return what asks a live shard how its table is.

        Before the whole table reaches its minimum size, inserts do not count: the ones a shard has counted are taken
        off again.
        """
        lead = self._states[shard].expected_lead
        return Draw(shard, 0, 0 if self._limit.reached else max(math.ceil(lead), 0))

    def _draws(self, masses: Mapping[str, float], items: int, counted: int) -> tuple[Draw, ...]:
        parts = dict(zip(masses, self._split(masses, items), strict=True))
        counting = max(self._states, key=lambda shard: self._states[shard].expected_lead)
        parts.setdefault(counting, 0)
        draws = (Draw(shard, count, counted if shard == counting else 0) for shard, count in parts.items())
        return tuple(draw for draw in draws if draw.items or draw.counted)

    def _split(self, masses: Mapping[str, float], items: int) -> list[int]:
        if not (self._exhaustible or self._distinct):
            return systematic_split(items, list(masses.values()), self._rng)
        return capped_split(items, list(masses.values()), [self._cap(shard) for shard in masses], self._rng)

    def _most_items(self, masses: Mapping[str, float]) -> float:
        """Return how many items a batch may have."""
        if not (self._exhaustible or self._distinct):
            return math.inf
        return sum(self._cap(shard) for shard, mass in masses.items() if mass > 0)

    def _cap(self, shard: str) -> int:
        """Return how many items may be asked of a shard: one that may be sampled so often is not promised twice."""
        state = self._states[shard]
        return max(state.items - state.asked_items, 0) if self._exhaustible else state.items

    def _available_mass(self, state: ShardState) -> float:
        if not self._exhaustible or not state.items:
            return state.mass
        return state.mass * max(state.items - state.asked_items, 0) / state.items


def shard_config(config: TableConfig, shard_count: int) -> TableConfig:
    """Return the configuration of the part of a table that one of `shard_count` shards holds."""
    if shard_count == 1:
        return config
    limiter = config.rate_limiter
    part = dataclasses.replace(
        limiter,
        min_size=_divided(limiter.min_size, shard_count),
        error_buffer=limiter.error_buffer / shard_count,
        queue_size=_divided(limiter.queue_size, shard_count),
    )
    return dataclasses.replace(
        config,
        max_items=_divided(config.max_items, shard_count),
        max_bytes=_divided(config.max_bytes, shard_count),
        rate_limiter=part,
    )


def _divided(value: int, parts: int) -> int:
    return -(-value // parts)
