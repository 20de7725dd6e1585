"""How many items of a batch each shard gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def systematic_split(count: int, masses: Sequence[float], rng: np.random.Generator) -> list[int]:
    """Split `count` draws over shards in proportion to their masses.

    One random offset serves all (systematic sampling; Madow & Madow, 1944): each shard gets its exact share rounded up
    or down, and on average exactly its share.

    Args:
        count: Draws to split, 0 or more.
        masses: Mass of each shard, finite and not negative, at least one of them more than 0.
        rng: Source of the offset.

    Returns:
        Draws of each shard; their sum is `count`, and a shard without mass has none.
    """
    heaped = np.cumsum(np.asarray(masses, dtype=np.float64))
    offset = rng.random()
    edges = np.floor(np.concatenate(([0.0], heaped / heaped[-1] * count)) + offset).astype(np.int64)
    edges[edges == edges[-1]] = count  # offset + count may round up to the next whole number
    counts: list[int] = np.diff(edges).tolist()
    return counts


def capped_split(count: int, masses: Sequence[float], caps: Sequence[int], rng: np.random.Generator) -> list[int]:
    """Split like `systematic_split`, but give no shard more than its cap; what is too much goes to the others.

    Args:
        count: Draws to split, at most the sum of all caps of shards with mass.
        masses: As for `systematic_split`.
        caps: Most draws of each shard, 0 or more.
        rng: Source of the offsets.
    """
    parts, left = [0] * len(masses), count
    while left:
        open_masses = [mass if part < cap else 0.0 for mass, part, cap in zip(masses, parts, caps, strict=True)]
        more = systematic_split(left, open_masses, rng)
        parts = [min(part + extra, cap) for part, extra, cap in zip(parts, more, caps, strict=True)]
        left = count - sum(parts)
    return parts
