"""Losses of value distributions given by quantiles (Dabney et al. 2018, QR-DQN)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tidemill.rl.losses.td import ItemLoss, assert_rank


def quantile_target(n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_quantiles: Tensor) -> Tensor:
    """Return R + discount * each quantile of Z(s', a'), [B, K], without a gradient.

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_quantiles: The target network's quantiles of Z(s', a'), [B, K].
    """
    assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount)
    assert_rank(2, bootstrap_quantiles=bootstrap_quantiles)
    return (n_step_return[:, None] + bootstrap_discount[:, None] * bootstrap_quantiles).detach()


def quantile_huber_loss(quantiles: Tensor, target: Tensor, threshold: float) -> ItemLoss:
    """Return each item's quantile Huber loss, and as priority the absolute error of the mean.

    Quantile i of K stands for the level (i + 1/2) / K. The loss is the sum over the predicted quantiles of the mean
    over the target's samples of |level - 1{target < quantile}| * huber(target - quantile) / threshold
    (ibid., eq. 9 and 10); with threshold 0 the Huber loss is the absolute error.

    Args:
        quantiles: Predicted, [B, K].
        target: Samples of the target distribution, [B, J], without a gradient.
        threshold: Error from which the loss is linear, kappa of the paper, 0 or more.
    """
    assert_rank(2, quantiles=quantiles, target=target)
    assert len(quantiles) == len(target), "quantiles and target differ in batch size"
    count = quantiles.shape[1]
    level = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    error = target[:, None, :] - quantiles[:, :, None]  # [B, K, J]
    weight = (level[None, :, None] - (error.detach() < 0.0).to(error.dtype)).abs()
    size = error.abs()
    if threshold > 0.0:
        size = functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=threshold) / threshold
    loss = (weight * size).mean(dim=2).sum(dim=1)
    mean_error = (target.mean(dim=1) - quantiles.detach().mean(dim=1)).abs()
    return ItemLoss(loss, mean_error)
