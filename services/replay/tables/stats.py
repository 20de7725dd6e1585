"""The numbers of a table that survive a restart."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray


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
        corrupt_items: Items dropped because the bytes of a chunk they need were corrupt on disk.
        env_steps: Agent decisions that its writers have stored, in items or not.
    """

    inserts: int = 0
    samples: int = 0
    evictions: int = 0
    priority_updates: int = 0
    unknown_keys: int = 0
    sampled_age: int = 0
    corrupt_items: int = 0
    env_steps: int = 0


@dataclass(slots=True)
class TableStats:
    """All numbers of a table beside its items.

    Attributes:
        counters: What was counted.
        inserted: Items ever inserted, resets included: the insertion number of the next item.
        limiter: State of the rate limiter, see `RateLimiter.state`.
    """

    counters: Counters
    inserted: int
    limiter: tuple[int, int, int]

    def to_array(self) -> NDArray[np.int64]:
        """Return them as int64 [STATS_FIELDS]; `env_steps` is the last, which earlier versions do not have."""
        *counters, env_steps = astuple(self.counters)
        return np.array([*counters, self.inserted, *self.limiter, env_steps], dtype=np.int64)

    @classmethod
    def from_array(cls, values: NDArray[np.integer], env_steps: int) -> TableStats:
        """Return the statistics of an array of `to_array`; `env_steps` counts for one of an earlier version."""
        numbers = [*map(int, values), env_steps][:STATS_FIELDS]
        rest = numbers[_COUNTERS:]
        return cls(Counters(*numbers[:_COUNTERS], *numbers[-1:]), rest[0], (rest[1], rest[2], rest[3]))


_COUNTERS = len(Counters.__dataclass_fields__) - 1  # all but `env_steps`
STATS_FIELDS = _COUNTERS + 5
