"""Whether what was drawn fits a distribution, at a level that one in ten thousand right programs misses."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike


def chi_square_bound(degrees: int) -> float:
    """Return about the 99.99 % quantile of the chi-square distribution (Wilson and Hilferty, 1931)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 3.72 * math.sqrt(spread)) ** 3


def fits(counts: ArrayLike, probabilities: ArrayLike) -> bool:
    """True if counts pass Pearson's chi-square test against probabilities."""
    seen, expected = np.asarray(counts, float), np.asarray(probabilities, float)
    expected = expected * seen.sum()
    return bool(((seen - expected) ** 2 / expected).sum() < chi_square_bound(len(seen) - 1))


def fits_continuous(values: ArrayLike, distribution: Callable[[float], float]) -> bool:
    """True if values pass the test of Kolmogorov and Smirnov against a cumulative distribution function.

    The 99.99 % quantile of Kolmogorov's distribution is 2.2253, to be divided by the root of the number of values.
    """
    ordered = np.sort(np.asarray(values, float))
    below = np.array([distribution(value) for value in ordered])
    steps = np.arange(len(ordered) + 1) / len(ordered)
    distance = max((steps[1:] - below).max(), (below - steps[:-1]).max())
    return bool(distance < 2.2253 / math.sqrt(len(ordered)))
