"""Centered RMSProp against numbers worked out by hand, and against torch's where both are defined alike."""

from __future__ import annotations

import math

import pytest
import torch

from tidemill.errors import InvalidArgument
from tidemill.rl.optimizers import RMSProp


def test_first_two_steps_by_hand() -> None:
    """Decay .5, rate .1, epsilon 1: g = 2 then 4.

    Averages .5 * 2 = 1 and .5 * 4 = 2, variance 2 - 1 = 1, step .1 * 2 / sqrt(2); then averages 2.5 and 9,
    variance 9 - 6.25 = 2.75, step .1 * 4 / sqrt(3.75).
    """
    parameter = torch.tensor([1.0])
    optimizer = RMSProp([parameter], 0.1, decay=0.5, epsilon=1.0)
    optimizer.step([torch.tensor([2.0])])
    first = 1.0 - 0.2 / math.sqrt(2.0)
    torch.testing.assert_close(parameter, torch.tensor([first]))
    optimizer.step([torch.tensor([4.0])])
    torch.testing.assert_close(parameter, torch.tensor([first - 0.4 / math.sqrt(3.75)]))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_equals_torch_where_epsilon_does_not_matter(weight_decay: float) -> None:
    """With an epsilon of about 0 it makes no difference on which side of the root it stands."""
    rng = torch.Generator().manual_seed(0)
    start = torch.randn((4, 3), generator=rng)
    own, other = start.clone(), torch.nn.Parameter(start.clone())
    optimizer = RMSProp([own], 0.01, decay=0.9, epsilon=1e-16, weight_decay=weight_decay)
    reference = torch.optim.RMSprop([other], 0.01, alpha=0.9, eps=1e-8, centered=True, weight_decay=weight_decay)
    for _ in range(20):
        gradient = torch.randn((4, 3), generator=rng)
        optimizer.step([gradient])
        other.grad = gradient
        reference.step()
    torch.testing.assert_close(own, other.detach(), rtol=1e-4, atol=1e-5)


def test_constant_gradient_leaves_epsilon_alone_under_the_root() -> None:
    """The variance goes to 0 and rounding must not make it negative: every step stays finite."""
    parameter = torch.zeros(100)
    optimizer = RMSProp([parameter], 1e-6, epsilon=1e-12)
    gradient = torch.full((100,), 1234.567)
    for _ in range(500):
        optimizer.step([gradient])
    assert bool(torch.isfinite(parameter).all())


def test_state_of_other_parameters_is_refused() -> None:
    """The message says what does not fit."""
    state = RMSProp([torch.zeros(3)], 0.1).state_dict()
    with pytest.raises(InvalidArgument, match="mean"):
        RMSProp([torch.zeros(4)], 0.1).load_state_dict(state)
