"""Report on one shard of a table, which a learner's status shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ShardReport:
    """One shard at one moment, as a sampler or a learner sees it."""

    name: str
    """Its place in the list of addresses, or its address where a DNS name stands for all."""
    address: str
    """Its address."""
    live: bool
    """Whether it answers."""
    items: int = 0
    """Items in its part of the table; 0 while it does not answer."""
    total_weight: float = 0.0
    """Sum of its sampler's weights; 0 while it does not answer."""
    samples: int = 0
    """Items it has given to the sampler, its restarts included."""
