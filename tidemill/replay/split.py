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
