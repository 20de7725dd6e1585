"""Statistics over seeds, against numbers worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tidemill.services.tools.plot.bootstrap import common_grid, interquartile_mean, mean_interval, on_grid


@pytest.mark.parametrize(
    "values, expected",
    [
        ([7.0], 7.0),
        ([4.0, 1.0, 3.0, 2.0], 2.5),  # the middle two
        ([10.0, 0.0, 0.0], 5.0 / 3.0),  # (0 / 4 + 0 + 10 / 4) / (3 / 2)
        ([1.0, 2.0, 3.0, 4.0, 100.0], 3.0),  # (3 / 4 * 2 + 3 + 3 / 4 * 4) / (5 / 2)
    ],
)
def test_interquartile_mean_counts_the_middle_half(values: list[float], expected: float) -> None:
    """A quarter of the weight is cut at either end, in parts of a value where it must be."""
    assert interquartile_mean(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    "values, of_rliable",
    [
        ([200.0, 211.9, 189.0, 164.4], 194.5),
        ([181.8, 160.3, 202.4, 253.6, 180.3, 175.2, 219.6, 214.3], 194.7),
        ([204.2, 162.8, 198.8, 227.8, 146.2, 181.7, 124.0, 148.4, 126.3, 190.6, 149.3, 210.9], 171.93333333333337),
    ],
)
def test_interquartile_mean_is_that_of_rliable(values: list[float], of_rliable: float) -> None:
    """`metrics.aggregate_iqm` of rliable 1.2.0, which cuts whole values only, where a quarter is a whole number."""
    assert interquartile_mean(values) == pytest.approx(of_rliable)


def test_interval_is_that_of_rliable() -> None:
    """`get_interval_estimates` of rliable 1.2.0 with the mean and 50,000 resamples, to their chance."""
    low, high = mean_interval(np.array([173.0, 245.0, 270.0, 204.0, 249.0, 264.0, 188.0, 231.0]))
    assert [float(low), float(high)] == pytest.approx([204.25, 250.375], abs=0.7)


def test_interval_of_three_seeds_is_that_of_all_their_resamples() -> None:
    """The quantiles agree with those over the 27 equally likely resamples of three values."""
    values = np.array([0.0, 3.0, 9.0])
    means = [np.mean(drawn) for drawn in itertools.product(values, repeat=3)]
    low, high = mean_interval(values, level=0.8)
    # 10 % and 90 % fall inside steps of the distribution, away from where chance could move them.
    expected = np.quantile(means, [0.1, 0.9], method="inverted_cdf")
    assert [float(low), float(high)] == pytest.approx(expected.tolist())


def test_interval_of_equal_seeds_has_no_width() -> None:
    """Seeds that agree leave nothing to chance."""
    low, high = mean_interval(np.array([5.0, 5.0, 5.0]))
    assert (float(low), float(high)) == (5.0, 5.0)


def test_interval_is_the_same_every_time() -> None:
    """A report made again from the same runs has the same figures."""
    values = np.random.default_rng(3).normal(size=(5, 7))
    first, second = mean_interval(values), mean_interval(values)
    assert np.array_equal(first, second)
    assert (first[0] < values.mean(axis=0)).all()
    assert (first[1] > values.mean(axis=0)).all()


def test_interval_of_a_curve_draws_whole_seeds() -> None:
    """A resample takes a seed at all points at once: where the curve is mirrored, so is its band."""
    at_first = np.array([1.0, -4.0, 2.0])
    low, high = mean_interval(np.stack([at_first, -at_first], axis=1))
    assert low[0] < high[0]
    assert (low[1], high[1]) == (-high[0], -low[0])


def test_grid_covers_what_all_curves_have() -> None:
    """It goes from the latest start to the earliest end; nothing is extrapolated."""
    curves = [([0.0, 100.0], [0.0, 10.0]), ([20.0, 60.0], [5.0, 1.0])]
    grid = common_grid(curves, points=3)
    assert grid.tolist() == [20.0, 40.0, 60.0]
    assert on_grid(curves, grid).tolist() == [[2.0, 4.0, 6.0], [5.0, 3.0, 1.0]]


@pytest.mark.parametrize("curves", [[], [([0.0, 1.0], [0.0, 0.0]), ([2.0, 3.0], [0.0, 0.0])]])
def test_grid_is_empty_where_curves_have_nothing_in_common(curves: list[tuple[list[float], list[float]]]) -> None:
    """Without a stretch that all curves cover there is no mean curve."""
    assert len(common_grid(curves)) == 0
