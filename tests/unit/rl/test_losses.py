"""Losses against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tidemill.rl import losses
from tidemill.rl.agents.sac import loss as sac_loss

BOOTSTRAP_Q = torch.tensor([[1.0, 5.0], [3.0, 2.0]])
SELECTOR_Q = torch.tensor([[9.0, 0.0], [9.0, 0.0]])


def test_q_learning_target_takes_the_largest_target_value() -> None:
    """1 + .5 * 5 = 3.5; 2 + 0 * 3 = 2."""
    target = losses.q_learning_target(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]), BOOTSTRAP_Q, BOOTSTRAP_Q)
    torch.testing.assert_close(target, torch.tensor([3.5, 2.0]))


def test_double_q_learning_target_values_the_action_the_online_network_chose() -> None:
    """The selector prefers action 0: 1 + .5 * 1 = 1.5; 2 + .5 * 3 = 3.5."""
    target = losses.q_learning_target(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.5]), BOOTSTRAP_Q, SELECTOR_Q)
    torch.testing.assert_close(target, torch.tensor([1.5, 3.5]))


def test_huber_loss_is_quadratic_within_one_and_linear_beyond() -> None:
    """Errors .5 and 3: .5 * .25 = .125 and 3 - .5 = 2.5; weights 1 and .5; mean (.125 + 1.25) / 2."""
    result = losses.td_loss(torch.tensor([0.0, 0.0]), torch.tensor([0.5, 3.0]), torch.tensor([1.0, 0.5]), huber=True)
    torch.testing.assert_close(result.loss, torch.tensor(0.6875))
    torch.testing.assert_close(result.td_error, torch.tensor([0.5, 3.0]))


def test_mse_loss_is_half_the_square() -> None:
    """Errors 1 and -2: .5 and 2; mean 1.25; the error keeps its sign."""
    result = losses.td_loss(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.0]), torch.ones(2), huber=False)
    torch.testing.assert_close(result.loss, torch.tensor(1.25))
    torch.testing.assert_close(result.td_error, torch.tensor([1.0, -2.0]))


def test_soft_target_takes_the_smaller_critic_and_adds_the_entropy() -> None:
    """1 + .5 * (min(4, 3) - .1 * -2) = 1 + .5 * 3.2 = 2.6; after termination the reward alone."""
    target = sac_loss.soft_q_target(
        torch.tensor([1.0, 7.0]),
        torch.tensor([0.5, 0.0]),
        torch.tensor([[4.0, 4.0], [3.0, 3.0]]),
        torch.tensor([-2.0, -2.0]),
        torch.tensor(0.1),
    )
    torch.testing.assert_close(target, torch.tensor([2.6, 7.0]))


def test_twin_loss_sums_the_critics_and_reports_their_mean_error() -> None:
    """Errors (1, 2) and (3, 0) of weights (1, .5): halves of 1 + 9 and of .5 * 4, mean (5 + 1) / 2 = 3."""
    result = losses.twin_td_loss(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.zeros(2), torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(result.loss, torch.tensor(3.0))
    torch.testing.assert_close(result.td_error, torch.tensor([2.0, 1.0]))


def test_sac_actor_loss_is_temperature_times_log_density_minus_the_smaller_value() -> None:
    """.5 * 2 - 1 = 0 and .5 * -4 - 2 = -4: mean -2."""
    loss = sac_loss.actor_loss(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.tensor([2.0, -4.0]), torch.tensor(0.5))
    torch.testing.assert_close(loss, torch.tensor(-2.0))


@pytest.mark.parametrize("log_prob,direction", [(3.0, 1), (1.0, -1)])
def test_temperature_rises_while_entropy_is_below_its_target(log_prob: float, direction: int) -> None:
    """Entropy -3 is below the target of -2, so a step downhill raises the temperature; -1 lowers it."""
    log_temperature = torch.tensor(math.log(0.2), requires_grad=True)
    loss = sac_loss.temperature_loss(log_temperature, torch.full((4,), log_prob), target_entropy=-2.0)
    (gradient,) = torch.autograd.grad(loss, log_temperature)
    assert torch.sign(-gradient) == direction


def test_targets_carry_no_gradient() -> None:
    """What is bootstrapped from is a constant, in both algorithms."""
    q = BOOTSTRAP_Q.clone().requires_grad_()
    vector, scalar = torch.ones(2, requires_grad=True), torch.tensor(0.1, requires_grad=True)
    assert not losses.q_learning_target(vector, vector, q, q).requires_grad
    assert not sac_loss.soft_q_target(vector, vector, q, vector, scalar).requires_grad


def test_tensor_of_the_wrong_rank_is_refused_by_name() -> None:
    """Broadcasting [B, 1] against [B] would be a silent [B, B]."""
    with pytest.raises(AssertionError, match="prediction must have rank 1"):
        losses.td_loss(torch.zeros(2, 1), torch.zeros(2), torch.zeros(2), huber=True)
    with pytest.raises(AssertionError, match="log_prob must have rank 1"):
        sac_loss.actor_loss(torch.zeros(2, 2), torch.zeros(2, 1), torch.tensor(0.1))
