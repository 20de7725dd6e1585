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


def even_levels(count: int, device: torch.device | None = None) -> Tensor:
    """Return the middle of each of `count` equal parts of 0 to 1, float32 [K]: the levels of QR-DQN's quantiles."""
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count


def quantile_huber_loss(quantiles: Tensor, target: Tensor, threshold: float, level: Tensor | None = None) -> ItemLoss:
    """Return each item's quantile Huber loss, and as priority the absolute error of the mean.

    The loss is the sum over the predicted quantiles of the mean over the target's samples of
    |level - 1{target < quantile}| * huber(target - quantile) / threshold (ibid., eq. 9 and 10; Dabney et al. 2018b,
    eq. 3, for levels that were drawn); with threshold 0 the Huber loss is the absolute error.

    Args:
        quantiles: Predicted, [B, K].
        target: Samples of the target distribution, [B, J], without a gradient.
        threshold: Error from which the loss is linear, kappa of the paper, 0 or more.
        level: Which quantile each prediction is of, 0 to 1, [B, K]; without it `even_levels`.
    """
    assert_rank(2, quantiles=quantiles, target=target)
    assert len(quantiles) == len(target), "quantiles and target differ in batch size"
    if level is None:
        level = even_levels(quantiles.shape[1], quantiles.device).to(quantiles.dtype).expand_as(quantiles)
    assert level.shape == quantiles.shape, f"levels {tuple(level.shape)} of quantiles {tuple(quantiles.shape)}"
    error = target[:, None, :] - quantiles[:, :, None]  # [B, K, J]
    weight = (level[:, :, None] - (error.detach() < 0.0).to(error.dtype)).abs()
    size = error.abs()
    if threshold > 0.0:
        size = functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=threshold) / threshold
    loss = (weight * size).mean(dim=2).sum(dim=1)
    mean_error = (target.mean(dim=1) - quantiles.detach().mean(dim=1)).abs()
    return ItemLoss(loss, mean_error)
