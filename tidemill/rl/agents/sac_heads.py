"""Heads of SAC's critics, a value or quantiles (TQC, Kuznetsov et al. 2020): targets, losses, gradients."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tidemill.rl.losses import assert_rank, even_levels, quantile_huber_loss, quantile_target, twin_td_loss
from tidemill.rl.settings.soft_actor_critic import SACConfig

_QUANTILE_THRESHOLD = 1.0
"""Of the quantile Huber loss, in Kuznetsov et al. 2020 as in Dabney et al. 2018."""


def soft_target(
    n_step_return: Tensor, bootstrap_discount: Tensor, kept: Tensor, log_prob: Tensor, temperature: Tensor
) -> Tensor:
    """Return R + discount * (each of `kept` - temperature * log pi(a'|s')), [B, J], without a gradient.

    It is the target of Haarnoja et al. 2018, eq. 3, and of Kuznetsov et al. 2020.

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        kept: `ValueHead.kept` of a' ~ pi, [B, J].
        log_prob: Log-density of a', [B].
        temperature: Weight of the entropy, [].
    """
    assert_rank(1, log_prob=log_prob)
    assert_rank(0, temperature=temperature)
    return quantile_target(n_step_return, bootstrap_discount, kept - (temperature * log_prob)[:, None])


class ValueHead(Protocol):
    """One way to represent the value of an action by the K numbers of each of C critics, [C, B, K]."""

    def kept(self, bootstrap: Tensor) -> Tensor:
        """Return the J numbers that a target bootstraps from, [B, J], given the target critics' [C, B, K]."""

    def loss(self, output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted mean over the batch of the sum of all critics' losses, [].

        Args:
            output: The critics' numbers, [C, B, K].
            target: `soft_target`, [B, J].
            weight: Importance weights, [B].
        """

    def gradient(self, output: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of `loss` by the output, [C, B, K], and each item's mean absolute error, [B]."""

    def actor_gradient(self, output: Tensor) -> Tensor:
        """Return the gradient of minus the batch's mean value, as the actor is to raise it, by the output, [C, B, K].

        That of the actor's loss with respect to each log-density is temperature / B.
        """


class ScalarHead:
    """K = J = 1: the value itself, of which the smallest counts (Fujimoto et al. 2018; Haarnoja et al. 2018)."""

    def __init__(self, huber_delta: float) -> None:
        """Take the threshold of a Huber loss; 0 for the squared loss."""
        self._huber_delta = huber_delta

    def kept(self, bootstrap: Tensor) -> Tensor:
        """Return the smallest of all critics' values, [B, 1]."""
        assert_rank(3, bootstrap=bootstrap)
        return bootstrap.amin(dim=0)

    def loss(self, output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Return the mean of half the squared errors' sum, or of the Huber losses', []."""
        return twin_td_loss(output.squeeze(-1), target.squeeze(-1), weight, self._huber_delta).loss

    def gradient(self, output: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return that of `loss`, [C, B, 1], which a Huber loss bounds, and the errors [B]."""
        assert_rank(3, output=output)
        assert_rank(2, target=target)
        error = (output - target).squeeze(-1)
        pull = error.clamp(-self._huber_delta, self._huber_delta) if self._huber_delta else error
        return (pull * (weight / len(weight))).unsqueeze(-1), error.abs().mean(dim=0)

    def actor_gradient(self, output: Tensor) -> Tensor:
        """Return -1 / B for the smallest value of each item."""
        assert_rank(3, output=output)
        return torch.zeros_like(output).scatter_(0, output.argmin(dim=0, keepdim=True), -1.0 / output.shape[1])


class QuantileHead:
    """K quantiles of the return; the target leaves out the largest of all critics' (Kuznetsov et al. 2020)."""

    def __init__(self, dropped_per_critic: int) -> None:
        """Take how many quantiles are left out for each critic; which critic they are of does not matter."""
        self._dropped = dropped_per_critic

    def kept(self, bootstrap: Tensor) -> Tensor:
        """Return the truncated mixture: all critics' quantiles but the largest, ascending, [B, C (K - dropped)]."""
        assert_rank(3, bootstrap=bootstrap)
        critics, _, count = bootstrap.shape
        pooled = bootstrap.transpose(0, 1).flatten(1)
        ascending, _ = pooled.sort(dim=1)
        return ascending[:, : critics * (count - self._dropped)]

    def loss(self, output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted mean of the sum over critics of the mean over quantiles of `quantile_huber_loss`, [].

        It is a mean over a critic's quantiles, where Dabney et al. 2018 have a sum.
        """
        assert_rank(3, output=output)
        critics, _, count = output.shape
        per_critic = quantile_huber_loss(output.flatten(0, 1), target.repeat(critics, 1), _QUANTILE_THRESHOLD)
        return (weight * per_critic.loss.view(critics, -1)).sum(dim=0).mean() / count

    def gradient(self, output: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return that of `loss`, [C, B, K], and the absolute error of the mean, [B], a mean over critics."""
        assert_rank(3, output=output)
        assert_rank(2, target=target)
        batch, count = output.shape[1:]
        level = even_levels(count, output.device)[:, None]
        error = target[:, None, :] - output.unsqueeze(-1)  # [C, B, K, J]
        pull = torch.where(error < 0.0, 1.0 - level, level) * error.clamp(-_QUANTILE_THRESHOLD, _QUANTILE_THRESHOLD)
        td_error = (target.mean(dim=1) - output.mean(dim=2)).abs().mean(dim=0)
        return pull.mean(dim=3) * (weight / (-_QUANTILE_THRESHOLD * batch * count))[:, None], td_error

    def actor_gradient(self, output: Tensor) -> Tensor:
        """Return -1 / (C B K): the actor raises the mean of all quantiles, none left out (ibid.)."""
        return torch.full_like(output, -1.0 / output.numel())


def build_value_head(config: SACConfig) -> ValueHead:
    """Return the representation that the settings ask for."""
    if config.quantiles:
        return QuantileHead(config.dropped_quantiles_per_critic)
    return ScalarHead(config.huber_delta)
