"""Settings of the table a learner creates and samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidemill.replay.table_config import MAX_ITEMS, is_table_name
from tidemill.settings.check import check, check_at_least, check_between, check_positive


@dataclass(frozen=True)
class TableSettings:
    """The replay table of a run."""

    name: str = "replay"
    """Name of the table: lower-case letters, digits and `_`, a letter first; at most 63 characters."""
    sampler: Literal["uniform", "prioritized", "fifo"] = "uniform"
    """Order in which items are sampled: uniformly (`uniform`), in proportion to priorities (`prioritized`), or oldest
    first (`fifo`)."""
    priority_exponent: float = 0.6
    """Exponent alpha of priorities, with `prioritized` (Schaul et al., 2016, section 3.3). 0 samples uniformly; larger
    values prefer high priorities more."""
    importance_sampling_exponent: float = 0.4
    """Exponent beta of the importance weights at the start, 0 to 1 (Schaul et al., 2016, section 3.4). 0 leaves the
    bias of prioritized sampling; 1 corrects all of it."""
    importance_sampling_exponent_final: float = 1.0
    """Exponent beta at the end of its linear schedule, 0 to 1."""
    importance_sampling_steps: int = 1_000_000
    """Updates over which beta moves from its first value to its final one. 0 keeps `importance_sampling_exponent`."""
    max_items: int = 1_000_000
    """Capacity in items, 1 to 2**31 - 1. A full table removes the oldest item."""
    min_size: int = 1_000
    """Items the table must hold before training starts, at least 1."""
    error_buffer_updates: float = 100.0
    """Updates by which training may run ahead of or fall behind `learner.updates_per_env_step`. A larger buffer makes
    actors and learner wait for each other less often."""
    chunk_length: int = 16
    """Steps of one environment that are compressed and sent together, 1 to 1024. Longer chunks compress better, but
    arrive later."""
    hindsight: float = 0.0
    """Share of sampled transitions whose goal is replaced by one achieved later in the episode, 0 to 1. This is
    hindsight experience replay (HER) with strategy `future`; 0.8 is the paper's k = 4. It needs an environment with
    goals and `agent.n_step` 1. 0 disables it."""
    hindsight_steps: int = 50
    """Maximum number of steps from a transition to the achieved goal that replaces its goal, 1 to 10000. Each item
    covers this many steps. Set it to the length of the longest episode for the paper's distribution."""

    def __post_init__(self) -> None:
        allowed = "lower-case letters, digits and `_`, a letter first; at most 63 characters"
        check(is_table_name(self.name), "table.name", self.name, allowed)
        check_at_least(0, "table", self, "priority_exponent", "importance_sampling_steps")
        check_positive("table", self, "error_buffer_updates")
        check_between(0, 1, "table", self, "importance_sampling_exponent", "hindsight")
        check_between(0, 1, "table", self, "importance_sampling_exponent_final")
        check_between(1, MAX_ITEMS, "table", self, "max_items")
        check_between(1, 1024, "table", self, "chunk_length")
        check_between(1, 10_000, "table", self, "hindsight_steps")
        allowed = f"1 to table.max_items ({self.max_items})"
        check(1 <= self.min_size <= self.max_items, "table.min_size", self.min_size, allowed)
