"""Losses against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.naming import naming
from tidemill.rl import losses
from tidemill.rl.agents import sac_heads
from tidemill.rl.agents.dqn import gather_argmax
from tidemill.rl.agents.dqn_heads import CategoricalHead, QuantileHead, ScalarHead

PLAIN = ScalarHead(huber=False)
TARGET_OUTPUT = torch.tensor([[[1.0], [5.0]], [[3.0], [2.0]]])


def test_q_learning_values_the_targets_best_action() -> None:
    """1 + .5 * 5 = 3.5 and 2 + 0 * 3 = 2: against predictions of 3 and 0 the errors are .5 and 2."""
    following = gather_argmax(TARGET_OUTPUT, PLAIN.mean(TARGET_OUTPUT))
    item = PLAIN.loss(torch.tensor([[3.0], [0.0]]), torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]), following)
    torch.testing.assert_close(item.priority, torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(item.loss, torch.tensor([0.125, 2.0]))


def test_categorical_values_by_hand() -> None:
    """Atoms 0, 1, 2; Z(s') is 1 for certain, so .5 + .5 * 1 = 1 is the middle atom, which has 1/2 of the prediction.

    Cross entropy and divergence are then both log 2; a target of 1.25 would be 3/4 at 1 and 1/4 at 2.
    """
    values = CategoricalHead(torch.tensor([0.0, 1.0, 2.0]))
    taken = torch.tensor([[0.25, 0.5, 0.25]]).log()
    torch.testing.assert_close(values.mean(taken), torch.tensor([1.0]))
    certain = torch.tensor([[-100.0, 100.0, -100.0]])
    item = values.loss(taken, torch.tensor([0.5]), torch.tensor([0.5]), certain)
    torch.testing.assert_close(item.loss, torch.tensor([math.log(2.0)]))
    torch.testing.assert_close(item.priority, torch.tensor([math.log(2.0)]))
    item = values.loss(taken, torch.tensor([0.75]), torch.tensor([0.5]), certain)
    cross_entropy = 0.75 * math.log(2.0) + 0.25 * math.log(4.0)
    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    torch.testing.assert_close(item.loss, torch.tensor([cross_entropy]))
    torch.testing.assert_close(item.priority, torch.tensor([cross_entropy - entropy]))


def test_quantile_huber_loss_by_hand() -> None:
    """Quantiles 0 (level 1/4) and 4 (level 3/4) against samples 1 and 2, threshold 1.

    0: both above it, 1/4 * (.5 + 1.5) / 2 = .25; 4: both below it, (1 - 3/4) * (2.5 + 1.5) / 2 = .5; together .75. The
    means, 2 and 1.5, are .5 apart.
    """
    item = losses.quantile_huber_loss(torch.tensor([[0.0, 4.0]]), torch.tensor([[1.0, 2.0]]), threshold=1.0)
    torch.testing.assert_close(item.loss, torch.tensor([0.75]))
    torch.testing.assert_close(item.priority, torch.tensor([0.5]))


def test_quantile_loss_without_a_threshold_is_linear_from_0_on() -> None:
    """1/4 * (1 + 2) / 2 = .375 and 1/4 * (3 + 2) / 2 = .625."""
    item = losses.quantile_huber_loss(torch.tensor([[0.0, 4.0]]), torch.tensor([[1.0, 2.0]]), threshold=0.0)
    torch.testing.assert_close(item.loss, torch.tensor([1.0]))


def test_quantile_loss_is_least_at_the_quantiles_of_its_target() -> None:
    """Gradient descent on one quantile of level 1/2 ends at the median, not at the mean, of 0, 1 and 8."""
    quantile = torch.tensor([[5.0]], requires_grad=True)
    for _ in range(500):
        loss = losses.quantile_huber_loss(quantile, torch.tensor([[0.0, 1.0, 8.0]]), threshold=0.0).loss.sum()
        (gradient,) = torch.autograd.grad(loss, quantile)
        quantile = (quantile - 0.05 * gradient).detach().requires_grad_()
    assert quantile.item() == pytest.approx(1.0, abs=0.05)


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
    bootstrap = torch.tensor([[[4.0], [4.0]], [[3.0], [3.0]]])
    target = sac_heads.soft_target(
        torch.tensor([1.0, 7.0]),
        torch.tensor([0.5, 0.0]),
        sac_heads.ScalarHead(huber_delta=0.0).kept(bootstrap),
        torch.tensor([-2.0, -2.0]),
        torch.tensor(0.1),
    )
    torch.testing.assert_close(target, torch.tensor([[2.6], [7.0]]))


def test_twin_loss_sums_the_critics_and_reports_their_mean_error() -> None:
    """Errors (1, 2) and (3, 0) of weights (1, .5): halves of 1 + 9 and of .5 * 4, mean (5 + 1) / 2 = 3."""
    result = losses.twin_td_loss(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.zeros(2), torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(result.loss, torch.tensor(3.0))
    torch.testing.assert_close(result.td_error, torch.tensor([2.0, 1.0]))


def test_twin_loss_with_a_bound_is_linear_beyond_it() -> None:
    """Errors .5 and 3 at a bound of 2: .125 and 2 * (3 - 1) = 4, of weights 1 and .5: (.125 + 2) / 2."""
    q, weight = torch.tensor([[0.5, 3.0]], requires_grad=True), torch.tensor([1.0, 0.5])
    result = losses.twin_td_loss(q, torch.zeros(2), weight, max_error=2.0)
    torch.testing.assert_close(result.loss.detach(), torch.tensor(1.0625))
    (gradient,) = torch.autograd.grad(result.loss, q)
    written, _ = sac_heads.ScalarHead(2.0).gradient(q.detach().unsqueeze(-1), torch.zeros(2, 1), weight)
    torch.testing.assert_close(gradient, written.squeeze(-1))


def test_targets_carry_no_gradient() -> None:
    """What is bootstrapped from is a constant, in every algorithm."""
    q = torch.ones((2, 2), requires_grad=True)
    vector, scalar = torch.ones(2, requires_grad=True), torch.tensor(0.1, requires_grad=True)
    for values in (PLAIN, CategoricalHead(torch.tensor([0.0, 1.0])), QuantileHead()):
        output = q[:, :1] if values is PLAIN else q
        taken = output.detach().clone()
        assert not values.loss(taken, vector, vector, output).loss.requires_grad
    assert not sac_heads.soft_target(vector, vector, q, vector, scalar).requires_grad


def test_tensor_of_the_wrong_rank_is_refused_by_name() -> None:
    """Broadcasting [B, 1] against [B] would be a silent [B, B]."""
    with pytest.raises(AssertionError, match=naming("prediction rank 1")):
        losses.td_loss(torch.zeros(2, 1), torch.zeros(2), torch.zeros(2), huber=True)
    with pytest.raises(AssertionError, match=naming("log_prob rank 1")):
        sac_heads.soft_target(torch.zeros(2), torch.zeros(2), torch.zeros(2, 2), torch.zeros(2, 1), torch.tensor(0.1))
