"""The losses of the agents, as pure functions of tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class TDLoss(NamedTuple):
    """A loss over a batch and what it learned about each item.

    Attributes:
        loss: Weighted mean over the batch, float32 [].
        td_error: target - prediction, without a gradient, float32 [B].
    """

    loss: Tensor
    td_error: Tensor


def _assert_rank(rank: int, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        assert tensor.ndim == rank, f"{name} must have rank {rank}, got shape {tuple(tensor.shape)}"


def q_learning_target(
    n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor, selector_q: Tensor
) -> Tensor:
    """Return R + discount * Q(s', argmax_a selector_q(s', a)), [B], without a gradient.

    With the target network as `selector_q` it is Q-learning's target, with the online network double
    Q-learning's (van Hasselt et al. 2016, eq. 4).

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_q: The target network's Q of the bootstrap observation, [B, A].
        selector_q: The Q whose largest entry chooses the action, [B, A].
    """
    _assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount)
    _assert_rank(2, bootstrap_q=bootstrap_q, selector_q=selector_q)
    best = selector_q.argmax(dim=1, keepdim=True)
    value = bootstrap_q.gather(1, best).squeeze(1)
    return (n_step_return + bootstrap_discount * value).detach()


def td_loss(prediction: Tensor, target: Tensor, weight: Tensor, huber: bool) -> TDLoss:
    """Return the weighted mean of a squared (halved) or Huber (threshold 1) error; all arguments [B]."""
    _assert_rank(1, prediction=prediction, target=target, weight=weight)
    if huber:
        per_sample = functional.smooth_l1_loss(prediction, target, reduction="none")
    else:
        per_sample = 0.5 * (prediction - target).square()
    return TDLoss((weight * per_sample).mean(), (target - prediction).detach())


def soft_q_target(
    n_step_return: Tensor,
    bootstrap_discount: Tensor,
    bootstrap_q: Tensor,
    log_prob: Tensor,
    temperature: Tensor,
) -> Tensor:
    """Return R + discount * (min of both Q(s', a') - temperature * log pi(a'|s')), [B].

    It is the target of Haarnoja et al. 2018, eq. 3, without a gradient.

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_q: Both target critics' values of a' ~ pi, [2, B].
        log_prob: Log-density of a', [B].
        temperature: Weight of the entropy, [].
    """
    _assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount, log_prob=log_prob)
    _assert_rank(2, bootstrap_q=bootstrap_q)
    _assert_rank(0, temperature=temperature)
    soft_value = torch.minimum(bootstrap_q[0], bootstrap_q[1]) - temperature * log_prob
    return (n_step_return + bootstrap_discount * soft_value).detach()


def sac_critic_loss(q: Tensor, target: Tensor, weight: Tensor) -> TDLoss:
    """Return the sum of both critics' weighted mean of half the squared error.

    `td_error` is the mean of the two absolute errors, [B]: what prioritized replay wants.

    Args:
        q: Both critics' values, [2, B].
        target: The target they share, [B].
        weight: Importance weights, [B].
    """
    _assert_rank(2, q=q)
    _assert_rank(1, target=target, weight=weight)
    error = q - target
    loss = 0.5 * (weight * error.square()).sum(dim=0).mean()
    return TDLoss(loss, error.detach().abs().mean(dim=0))


def sac_actor_loss(q: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Return mean(temperature * log pi(a|s) - min of both Q(s, a)), [] (Haarnoja 2018, eq. 7).

    Args:
        q: Both critics' values of a ~ pi, [2, B]; their parameters must not take part.
        log_prob: Log-density of a, [B].
        temperature: Weight of the entropy, [].
    """
    _assert_rank(2, q=q)
    _assert_rank(1, log_prob=log_prob)
    _assert_rank(0, temperature=temperature)
    return (temperature * log_prob - torch.minimum(q[0], q[1])).mean()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Return -log(temperature) * mean(log pi + target entropy), [] (Haarnoja 2018b, eq. 18).

    Its gradient raises the temperature while the policy's entropy, -mean(log pi), is below the target. The
    logarithm in place of the temperature keeps the step's size independent of the temperature's.
    """
    _assert_rank(0, log_temperature=log_temperature)
    _assert_rank(1, log_prob=log_prob)
    return -log_temperature * (log_prob.detach().mean() + target_entropy)


def sac_critic_gradient(q: Tensor, target: Tensor, weight: Tensor, max_error: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the gradient of `sac_critic_loss` with respect to q, [2, B], and its `td_error`, [B].

    A positive `max_error` is the threshold of a Huber loss in place of the squared one: the gradient stops there.
    """
    _assert_rank(2, q=q)
    _assert_rank(1, target=target, weight=weight)
    error = q - target
    pull = error.clamp(-max_error, max_error) if max_error else error
    return pull * (weight / len(weight)), error.abs().mean(dim=0)


def sac_actor_gradient(q: Tensor) -> Tensor:
    """Return the gradient of `sac_actor_loss` with respect to q, [2, B]: -1 / B for the smaller one.

    That with respect to each log-density is temperature / B.
    """
    _assert_rank(2, q=q)
    smaller = (q[0] <= q[1]).to(q.dtype)
    return torch.stack((smaller, 1.0 - smaller)).mul_(-1.0 / q.shape[1])
