"""Distributions over atoms against numbers worked out by hand, and against plain loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tidemill.rl.losses import categorical

SUPPORT = categorical.atoms(-1.0, 1.0, 3)


def looped(values: NDArray[np.float64], mass: NDArray[np.float64], support: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the projection as algorithm 1 of Bellemare et al. 2017 writes it, one atom after the other."""
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    result = np.zeros((len(values), len(support)))
    for row, (at, weights) in enumerate(zip(values, mass, strict=True)):
        for value, weight in zip(at, weights, strict=True):
            b = (min(max(value, support[0]), support[-1]) - support[0]) / spacing
            lower, upper = math.floor(b), math.ceil(b)
            if lower == upper:
                result[row, lower] += weight
            else:
                result[row, lower] += weight * (upper - b)
                result[row, upper] += weight * (b - lower)
    return result


def test_projection_splits_mass_by_nearness() -> None:
    """Of mass 1 at .25 a quarter goes to atom 1 and three quarters to atom 0."""
    found = categorical.project(torch.tensor([[0.25]]), torch.tensor([[1.0]]), SUPPORT)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.75, 0.25]]))


def test_projection_leaves_mass_on_an_atom_and_gathers_what_is_beyond() -> None:
    """Mass .5 at 0 stays; .2 at -7 and .3 at 5 go to the ends."""
    found = categorical.project(torch.tensor([[0.0, -7.0, 5.0]]), torch.tensor([[0.5, 0.2, 0.3]]), SUPPORT)
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.5, 0.3]]))


def test_target_shifts_and_shrinks_the_distribution() -> None:
    """.5 + .5 * (-1, 0, 1) = (0, .5, 1) with masses (.2, .4, .4): .2 + .2 on atom 0, .2 + .4 on atom 1."""
    probabilities = torch.tensor([[0.2, 0.4, 0.4]])
    target = categorical.categorical_target(torch.tensor([0.5]), torch.tensor([0.5]), probabilities, SUPPORT)
    torch.testing.assert_close(target, torch.tensor([[0.0, 0.4, 0.6]]))


def test_target_after_termination_is_the_return_alone() -> None:
    """Discount 0 puts all the mass at the return, .75: a quarter to atom 0, three quarters to atom 1."""
    target = categorical.categorical_target(torch.tensor([0.75]), torch.zeros(1), torch.full((1, 3), 1 / 3), SUPPORT)
    torch.testing.assert_close(target, torch.tensor([[0.0, 0.25, 0.75]]))


def test_target_of_a_return_that_is_no_number_is_no_number() -> None:
    """An environment that rewards NaN spoils its own item, visibly, and no other."""
    returns = torch.tensor([math.nan, 0.0])
    target = categorical.categorical_target(returns, torch.zeros(2), torch.full((2, 3), 1 / 3), SUPPORT)
    assert target[0].isnan().any()
    torch.testing.assert_close(target[1], torch.tensor([0.0, 1.0, 0.0]))


@pytest.mark.parametrize("seed", range(3))
def test_target_equals_the_loop_of_the_paper_and_keeps_mass_and_mean(seed: int) -> None:
    """On random batches it is the float64 loop; mass is 1, and within the atoms the mean is that of the values."""
    rng = np.random.default_rng(seed)
    support = np.linspace(-10.0, 10.0, 51)
    mass = rng.dirichlet(np.ones(51), 16)
    rewards, discounts = rng.normal(size=16) * 4, rng.choice([0.0, 0.5, 0.97], 16)
    values = rewards[:, None] + discounts[:, None] * support
    found = categorical.categorical_target(
        *(torch.tensor(x, dtype=torch.float32) for x in (rewards, discounts, mass, support))
    )
    np.testing.assert_allclose(found.numpy(), looped(values, mass, support), atol=1e-5)
    np.testing.assert_allclose(found.sum(dim=1).numpy(), 1.0, rtol=1e-5)
    inside = (np.abs(values) <= 10.0).all(axis=1)
    assert inside.any()
    means = (found.numpy() @ support)[inside]
    np.testing.assert_allclose(means, (mass * values).sum(axis=1)[inside], atol=1e-4)


def test_cross_entropy_and_divergence_by_hand() -> None:
    """Prediction (.5, .25, .25) of target (.5, .5, 0): .5 ln 2 + .5 ln 4 = 1.5 ln 2, of which ln 2 is unavoidable."""
    logits, target = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.5, 0.5, 0.0]])
    torch.testing.assert_close(categorical.cross_entropy(logits, target), torch.tensor([1.5 * math.log(2)]))
    torch.testing.assert_close(categorical.divergence(logits, target), torch.tensor([0.5 * math.log(2)]))
    assert float(categorical.divergence(torch.zeros(1, 3), torch.full((1, 3), 1 / 3))) == pytest.approx(0.0, abs=1e-6)


def test_expectation_weighs_the_atoms() -> None:
    """Probabilities (.5, .25, .25) on (-1, 0, 1) have the mean -.25; leading axes are kept."""
    logits = torch.tensor([0.5, 0.25, 0.25]).log().expand(2, 4, 3)
    torch.testing.assert_close(categorical.expectation(logits, SUPPORT), torch.full((2, 4), -0.25))


@pytest.mark.parametrize("lowest, highest, count", [(1.0, 1.0, 3), (2.0, 1.0, 3), (0.0, 1.0, 1)])
def test_atoms_that_are_none_are_refused(lowest: float, highest: float, count: int) -> None:
    """A distribution needs two atoms in increasing order."""
    with pytest.raises(AssertionError):
        categorical.atoms(lowest, highest, count)
