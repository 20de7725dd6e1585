"""The losses of soft actor-critic, and their gradients written out, as pure functions of tensors.

The critics' own is `tidemill.rl.losses.twin_td_loss`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tidemill.rl.losses import assert_rank


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
    assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount, log_prob=log_prob)
    assert_rank(2, bootstrap_q=bootstrap_q)
    assert_rank(0, temperature=temperature)
    soft_value = torch.minimum(bootstrap_q[0], bootstrap_q[1]) - temperature * log_prob
    return (n_step_return + bootstrap_discount * soft_value).detach()


def actor_loss(q: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Return mean(temperature * log pi(a|s) - min of both Q(s, a)), [] (Haarnoja 2018, eq. 7).

    Args:
        q: Both critics' values of a ~ pi, [2, B]; their parameters must not take part.
        log_prob: Log-density of a, [B].
        temperature: Weight of the entropy, [].
    """
    assert_rank(2, q=q)
    assert_rank(1, log_prob=log_prob)
    assert_rank(0, temperature=temperature)
    return (temperature * log_prob - torch.minimum(q[0], q[1])).mean()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Return -log(temperature) * mean(log pi + target entropy), [] (Haarnoja 2018b, eq. 18).

    Its gradient raises the temperature while the policy's entropy, -mean(log pi), is below the target. The
    logarithm in place of the temperature keeps the step's size independent of the temperature's.
    """
    assert_rank(0, log_temperature=log_temperature)
    assert_rank(1, log_prob=log_prob)
    return -log_temperature * (log_prob.detach().mean() + target_entropy)


def critic_gradient(q: Tensor, target: Tensor, weight: Tensor, max_error: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the gradient of `twin_td_loss` with respect to q, [2, B], and its `td_error`, [B].

    A positive `max_error` is the threshold of a Huber loss in place of the squared one: the gradient stops there.
    """
    assert_rank(2, q=q)
    assert_rank(1, target=target, weight=weight)
    error = q - target
    pull = error.clamp(-max_error, max_error) if max_error else error
    return pull * (weight / len(weight)), error.abs().mean(dim=0)


def actor_gradient(q: Tensor) -> Tensor:
    """Return the gradient of `actor_loss` with respect to q, [2, B]: -1 / B for the smaller one.

    That with respect to each log-density is temperature / B.
    """
    assert_rank(2, q=q)
    smaller = (q[0] <= q[1]).to(q.dtype)
    return torch.stack((smaller, 1.0 - smaller)).mul_(-1.0 / q.shape[1])
