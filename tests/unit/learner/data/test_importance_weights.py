"""Importance weights against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tidemill.config.table import TableSettings
from tidemill.services.learner.data.importance_weights import (
    importance_sampling_exponent,
    importance_weights,
    largest_weight,
)


def test_weights_are_those_of_the_formula_divided_by_the_largest() -> None:
    """N = 4, P = 1/2, 1/4, 1/8, beta = 1/2: (2, 1, 1/2)^-1/2 over sqrt 2 is 1/2, 1/sqrt 2, 1."""
    weight = importance_weights(np.array([0.5, 0.25, 0.125]), 4, 0.5)
    assert weight.dtype == np.float32
    np.testing.assert_allclose(weight, [0.5, 0.70710678, 1.0], rtol=1e-6)


def test_each_batch_of_several_is_scaled_by_its_own_largest() -> None:
    """With beta = 1 and N = 2 the rows (1/2, 1/4) and (1/8, 1/8) become (1/2, 1) and (1, 1)."""
    weight = importance_weights(np.array([[0.5, 0.25], [0.125, 0.125]]), 2, 1.0)
    np.testing.assert_allclose(weight, [[0.5, 1.0], [1.0, 1.0]], rtol=1e-6)


def test_largest_weight_is_that_of_the_unlikeliest_item_of_each_batch() -> None:
    """N = 8, beta = 1/2: of P (1/2, 1/32) the larger is (8 / 32)^-1/2 = 2, of (1/8, 1/2) it is 1."""
    probability = np.array([[0.5, 0.03125], [0.125, 0.5]])
    np.testing.assert_allclose(largest_weight(probability, 8, 0.5), [2.0, 1.0], rtol=1e-12)
    assert largest_weight(probability[0], 8, 0.5) == pytest.approx(2.0)


def test_exponent_zero_makes_all_weights_one() -> None:
    """Without correction every item counts the same."""
    np.testing.assert_array_equal(importance_weights(np.array([0.9, 1e-9]), 7, 0.0), [1.0, 1.0])


def test_weights_of_a_million_tiny_probabilities_are_finite() -> None:
    """The smallest probability gets weight 1 even where N * P leaves float32's comfortable range."""
    weight = importance_weights(np.array([1e-300, 1e-3]), 1_000_000, 1.0)
    assert weight[0] == 1.0
    assert np.isfinite(weight).all()


@pytest.mark.parametrize("steps, expected", [(0, 0.4), (250, 0.55), (500, 0.7), (1_000, 1.0), (5_000, 1.0)])
def test_exponent_rises_linearly_and_stays_at_its_final_value(steps: int, expected: float) -> None:
    """From 0.4 to 1 over 1,000 steps: 0.6 / 1,000 a step."""
    settings = TableSettings(sampler="prioritized", importance_sampling_steps=1_000)
    assert importance_sampling_exponent(settings, steps) == pytest.approx(expected)


def test_exponent_without_schedule_is_constant() -> None:
    """`importance_sampling_steps` 0 keeps the first value."""
    assert importance_sampling_exponent(TableSettings(importance_sampling_steps=0), 10**9) == 0.4
