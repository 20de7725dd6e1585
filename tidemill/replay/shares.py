"""Division of a batch among the tables that it is drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise


def split_batch(batch_size: int, fractions: Sequence[float]) -> list[int]:
    """Return how many items of each batch come from each table: its fraction, rounded so that the sum is exact."""
    edges = [math.floor(edge * batch_size + 0.5) for edge in accumulate(fractions, initial=0.0)]
    return [after - before for before, after in pairwise(edges)]
