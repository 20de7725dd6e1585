"""Importance weights: correct samples drawn by priority for the bias against uniform sampling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SMALLEST = 1e-38  # a divisor where there are no items


def importance_weights(
    probability: NDArray[np.float64], table_items: int, exponent: float
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the weight of each item of one or more batches (Schaul et al., 2016, section 3.4), and their divisors.

    Args:
        probability: Probability P(i) with which each item was chosen, float64 [..., B], more than 0.
        table_items: Items N in the table when the batch was drawn.
        exponent: beta, from 0 on; 0 makes all weights 1.

    Returns:
        `(N P(i))^-beta` divided by the largest of its batch, float32 [..., B], in (0, 1]; and that largest weight,
        float64 [...], with which the weights of several batches can be compared.
    """
    weight: NDArray[np.float64] = (max(table_items, 1) * probability) ** -exponent
    largest: NDArray[np.float64] = weight.max(axis=-1, initial=_SMALLEST)
    return (weight / largest[..., None]).astype(np.float32), largest
