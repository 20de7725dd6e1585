"""Heads of SAC's critics, a value or quantiles (TQC, Kuznetsov et al. 2020): targets, losses, gradients."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tidemill.rl.losses import assert_rank, even_levels, quantile_huber_loss, quantile_target, twin_td_loss
from tidemill.rl.settings.soft_actor_critic import SACConfig

_QUANTILE_THRESHOLD = 1.0
"""Of the quantile Huber loss, in Kuznetsov et al. 2020 as in Dabney et al. 2018."""


class ValueHead(Protocol):
    """One way to represent the value of an action by the K numbers of each of C critics, [C, B, K]."""

    def target(
        self,
        n_step_return: Tensor,
        bootstrap_discount: Tensor,
        bootstrap: Tensor,
        log_prob: Tensor,
        temperature: Tensor,
    ) -> Tensor:
        """Return the targets of all critics, without a gradient; see `soft_q_target` for the arguments.

        `bootstrap` is what the critics say of a' ~ pi, [C, B, K].
        """

    def loss(self, output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted mean over the batch of the sum of all critics' losses, []."""

    def gradient(self, output: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of `loss` by the output, [C, B, K], and each item's mean absolute error, [B]."""

    def actor_gradient(self, output: Tensor) -> Tensor:
        """Return the gradient of minus the batch's mean value, as the actor is to raise it, by the output, [C, B, K].

        That of the actor's loss with respect to each log-density is temperature / B.
        """


class ScalarHead:
    """K = 1: the value itself, of which the smallest counts (Fujimoto et al. 2018; Haarnoja et al. 2018)."""

    def __init__(self, huber_delta: float) -> None:
        self._huber_delta = huber_delta

    def target(
        self,
        n_step_return: Tensor,
        bootstrap_discount: Tensor,
        bootstrap: Tensor,
        log_prob: Tensor,
        temperature: Tensor,
    ) -> Tensor:
        """Return the target of every critic, [B]."""
        return soft_q_target(
            n_step_return=n_step_return,
            bootstrap_discount=bootstrap_discount,
            bootstrap_q=bootstrap.squeeze(-1),
            log_prob=log_prob,
            temperature=temperature,
        )

    def loss(self, output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Return the mean of half the squared errors' sum, or of the Huber losses', []."""
        return twin_td_loss(output.squeeze(-1), target, weight, self._huber_delta).loss

    def gradient(self, output: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return that of `loss`, [C, B, 1], and the errors [B]."""
        gradient, td_error = critic_gradient(output.squeeze(-1), target, weight, self._huber_delta)
        return gradient.unsqueeze(-1), td_error

    def actor_gradient(self, output: Tensor) -> Tensor:
        """Return -1 / B for the smallest value of each item."""
        return actor_gradient(output.squeeze(-1)).unsqueeze(-1)


class QuantileHead:
    """K quantiles of the return; the target leaves out the largest of all critics' (Kuznetsov et al. 2020)."""

    def __init__(self, dropped_per_critic: int) -> None:
        self._dropped = dropped_per_critic

    def target(
        self,
        n_step_return: Tensor,
        bootstrap_discount: Tensor,
        bootstrap: Tensor,
        log_prob: Tensor,
        temperature: Tensor,
    ) -> Tensor:
        """Return R + discount * (each quantile that is kept - temperature * log pi), [B, C (K - dropped)]."""
        soft = lowest_quantiles(bootstrap, self._dropped) - (temperature * log_prob)[:, None]
        return quantile_target(n_step_return, bootstrap_discount, soft)

    def loss(self, output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Return `quantile_loss`."""
        return quantile_loss(output, target, weight)

    def gradient(self, output: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return `quantile_gradient`."""
        return quantile_gradient(output, target, weight)

    def actor_gradient(self, output: Tensor) -> Tensor:
        """Return -1 / (C B K): the actor raises the mean of all quantiles, none left out (ibid.)."""
        return torch.full_like(output, -1.0 / output.numel())


def build_value_head(config: SACConfig) -> ValueHead:
    """Return the representation that the settings ask for."""
    if config.quantiles:
        return QuantileHead(config.dropped_quantiles_per_critic)
    return ScalarHead(config.huber_delta)


def soft_q_target(
    n_step_return: Tensor,
    bootstrap_discount: Tensor,
    bootstrap_q: Tensor,
    log_prob: Tensor,
    temperature: Tensor,
) -> Tensor:
    """Return R + discount * (least Q(s', a') - temperature * log pi(a'|s')), [B].

    It is the target of Haarnoja et al. 2018, eq. 3, without a gradient.

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_q: The target critics' values of a' ~ pi, [C, B].
        log_prob: Log-density of a', [B].
        temperature: Weight of the entropy, [].
    """
    assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount, log_prob=log_prob)
    assert_rank(2, bootstrap_q=bootstrap_q)
    assert_rank(0, temperature=temperature)
    soft_value = bootstrap_q.amin(dim=0) - temperature * log_prob
    return (n_step_return + bootstrap_discount * soft_value).detach()


def critic_gradient(q: Tensor, target: Tensor, weight: Tensor, max_error: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the gradient of `twin_td_loss` with respect to q, [C, B], and its `td_error`, [B].

    A positive `max_error` is the threshold of a Huber loss in place of the squared one: the gradient stops there.
    """
    assert_rank(2, q=q)
    assert_rank(1, target=target, weight=weight)
    error = q - target
    pull = error.clamp(-max_error, max_error) if max_error else error
    return pull * (weight / len(weight)), error.abs().mean(dim=0)


def actor_gradient(q: Tensor) -> Tensor:
    """Return the gradient of minus the mean of the smallest value with respect to q, [C, B]: -1 / B for that one."""
    assert_rank(2, q=q)
    return torch.zeros_like(q).scatter_(0, q.argmin(dim=0, keepdim=True), -1.0 / q.shape[1])


def lowest_quantiles(quantiles: Tensor, dropped_per_critic: int) -> Tensor:
    """Return all critics' quantiles together but the largest, in ascending order, [B, C (K - dropped)].

    It is the truncated mixture of Kuznetsov et al. 2020.

    Args:
        quantiles: Of each critic, [C, B, K].
        dropped_per_critic: How many are left out, for each critic; which critic they are of does not matter.
    """
    assert_rank(3, quantiles=quantiles)
    critics, _, count = quantiles.shape
    pooled = quantiles.transpose(0, 1).flatten(1)
    ascending, _ = pooled.sort(dim=1)
    return ascending[:, : critics * (count - dropped_per_critic)]


def quantile_loss(quantiles: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean of the sum over critics of the mean over quantiles of `quantile_huber_loss`, [].

    It is the loss of Kuznetsov et al. 2020: a mean over a critic's quantiles, where Dabney et al. 2018 have a sum.

    Args:
        quantiles: Each critic's, [C, B, K].
        target: Samples of the return that all of them are to predict, [B, J].
        weight: Importance weights, [B].
    """
    assert_rank(3, quantiles=quantiles)
    critics, _, count = quantiles.shape
    per_critic = quantile_huber_loss(quantiles.flatten(0, 1), target.repeat(critics, 1), _QUANTILE_THRESHOLD)
    return (weight * per_critic.loss.view(critics, -1)).sum(dim=0).mean() / count


def quantile_gradient(quantiles: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of `quantile_loss` by the quantiles, [C, B, K], and the absolute error of the mean, [B].

    The error is the mean over critics.
    """
    assert_rank(3, quantiles=quantiles)
    assert_rank(2, target=target)
    batch, count = quantiles.shape[1:]
    level = even_levels(count, quantiles.device)[:, None]
    error = target[:, None, :] - quantiles.unsqueeze(-1)  # [C, B, K, J]
    pull = torch.where(error < 0.0, 1.0 - level, level) * error.clamp(-_QUANTILE_THRESHOLD, _QUANTILE_THRESHOLD)
    td_error = (target.mean(dim=1) - quantiles.mean(dim=2)).abs().mean(dim=0)
    return pull.mean(dim=3) * (weight / (-_QUANTILE_THRESHOLD * batch * count))[:, None], td_error
