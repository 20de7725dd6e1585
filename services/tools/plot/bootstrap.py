"""Statistics over several seeds: means, interquartile means, and their confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_RESAMPLES = 10_000
_SEED = 0
"""The same runs give the same interval, whenever it is computed."""


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean of the middle half of the sorted values, those on its borders counted in part.

    Recommended for few seeds by Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical
    Precipice". Of three values 1/4 of the smallest, all of the middle one and 1/4 of the largest count; their
    package rliable cuts whole values only, and so none of three: it agrees where a quarter is a whole number.
    """
    ordered, count = np.sort(np.asarray(values, np.float64)), len(values)
    start = np.arange(count, dtype=np.float64)
    weight = np.clip(np.minimum(start + 1, 0.75 * count) - np.maximum(start, 0.25 * count), 0.0, None)
    return float((weight * ordered).sum() / weight.sum())


def mean_interval(values: Floats, level: float = 0.95) -> tuple[Floats, Floats]:
    """Return the percentile bootstrap interval of the mean over seeds (Efron & Tibshirani, 1993, chapter 13).

    Seeds are drawn with replacement, whole: what is computed for several points keeps together what one run did.

    Args:
        values: One row per seed, [N] or [N, G].
        level: Share of the resampled means that the interval holds.

    Returns:
        Its lower and upper end, [] or [G].
    """
    count = len(values)
    rng = np.random.default_rng(_SEED)
    weight = rng.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES) / count  # [R, N]
    means = weight @ values  # [R] or [R, G]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.asarray(low), np.asarray(high)


def common_grid(curves: Sequence[tuple[Sequence[float], Sequence[float]]], points: int = 101) -> Floats:
    """Return the range that all curves cover: from the latest first x to the earliest last x.

    Args:
        curves: x in rising order and y of each.
        points: Length of the grid.

    Returns:
        Evenly spaced x, [points]; [0] if the curves have nothing in common.
    """
    if not curves:
        return np.empty(0)
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    return np.linspace(low, high, points) if low < high else np.empty(0)


def on_grid(curves: Sequence[tuple[Sequence[float], Sequence[float]]], grid: Floats) -> Floats:
    """Return every curve at the points of a grid, linear between its own, [N, G]."""
    return np.array([np.interp(grid, x, y) for x, y in curves]).reshape(len(curves), len(grid))
