"""Importance weights: correct samples drawn by priority for the bias against uniform sampling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.config.table import TableSettings


def importance_weights(probability: NDArray[np.float64], table_items: int, exponent: float) -> NDArray[np.float32]:
    """Return the weight of each item of one or more batches (Schaul et al., 2016, section 3.4).

    Args:
        probability: Probability P(i) with which each item was chosen, float64 [..., B], more than 0.
        table_items: Items N in the table when the batch was drawn, at least 1.
        exponent: beta, 0 to 1; 0 makes all weights 1.

    Returns:
        `(N P(i))^-beta` divided by the largest of its batch, float32 [..., B], in (0, 1].
    """
    weight: NDArray[np.float64] = (table_items * probability) ** -exponent
    scaled: NDArray[np.float64] = weight / weight.max(axis=-1, keepdims=True)
    return scaled.astype(np.float32)


def largest_weight(probability: NDArray[np.float64], table_items: int, exponent: float) -> NDArray[np.float64]:
    """Return the divisor that `importance_weights` used per batch, float64 [...]: the weight of its rarest item."""
    weight: NDArray[np.float64] = (table_items * probability.min(axis=-1)) ** -exponent
    return weight


def importance_sampling_exponent(settings: TableSettings, learner_steps: int) -> float:
    """Return beta after some updates: linear from its first to its final value, then constant."""
    if settings.importance_sampling_steps == 0:
        return settings.importance_sampling_exponent
    share = min(learner_steps / settings.importance_sampling_steps, 1.0)
    first, final = settings.importance_sampling_exponent, settings.importance_sampling_exponent_final
    return first + share * (final - first)
