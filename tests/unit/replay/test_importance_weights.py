"""Importance weights against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tidemill.replay.sampling.sample_decoder import importance_weights


def test_weights_are_those_of_the_formula_divided_by_the_largest() -> None:
    """N = 4, P = 1/2, 1/4, 1/8, beta = 1/2: (2, 1, 1/2)^-1/2 over sqrt 2 is 1/2, 1/sqrt 2, 1."""
    weight, largest = importance_weights(np.array([0.5, 0.25, 0.125]), 4, 0.5)
    assert weight.dtype == np.float32
    np.testing.assert_allclose(weight, [0.5, 0.70710678, 1.0], rtol=1e-6)
    assert largest == pytest.approx(2**0.5)


def test_each_batch_of_several_is_scaled_by_its_own_largest() -> None:
    """With beta = 1 and N = 2 the rows (1/2, 1/4) and (1/8, 1/8) become (1/2, 1) and (1, 1)."""
    weight, largest = importance_weights(np.array([[0.5, 0.25], [0.125, 0.125]]), 2, 1.0)
    np.testing.assert_allclose(weight, [[0.5, 1.0], [1.0, 1.0]], rtol=1e-6)
    assert largest.tolist() == [2.0, 4.0]


def test_exponent_zero_makes_all_weights_one() -> None:
    """Without correction every item counts the same."""
    np.testing.assert_array_equal(importance_weights(np.array([0.9, 1e-9]), 7, 0.0)[0], [1.0, 1.0])


def test_weights_of_a_million_tiny_probabilities_are_finite() -> None:
    """The smallest probability gets weight 1 even where N * P leaves float32's comfortable range."""
    weight, _ = importance_weights(np.array([1e-300, 1e-3]), 1_000_000, 1.0)
    assert weight[0] == 1.0
    assert np.isfinite(weight).all()


def test_batch_without_items_has_no_weights() -> None:
    """As an empty table's is."""
    assert importance_weights(np.empty(0), 0, 1.0)[0].tolist() == []
