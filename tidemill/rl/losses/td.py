"""Temporal-difference losses of scalar values, and what every loss reports and asserts."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional


class ItemLoss(NamedTuple):
    """The loss of each item, before importance weights, and how surprising the item was.

    Attributes:
        loss: float32 [B].
        priority: Not negative, without a gradient, float32 [B].
    """

    loss: Tensor
    priority: Tensor


def assert_rank(rank: int, **tensors: Tensor) -> None:
    """Fail with the name and shape of a tensor that has another rank."""
    for name, tensor in tensors.items():
        assert tensor.ndim == rank, f"{name} must have rank {rank}, got shape {tuple(tensor.shape)}"


class TDLoss(NamedTuple):
    """A loss over a batch and what it learned about each item.

    Attributes:
        loss: Weighted mean over the batch, float32 [].
        td_error: target - prediction, without a gradient, float32 [B].
    """

    loss: Tensor
    td_error: Tensor


def td_item_loss(prediction: Tensor, target: Tensor, huber: bool) -> ItemLoss:
    """Return half the squared error of each item, or its Huber loss (threshold 1), and the absolute error; all [B]."""
    assert_rank(1, prediction=prediction, target=target)
    error = prediction - target
    loss = functional.smooth_l1_loss(prediction, target, reduction="none") if huber else 0.5 * error.square()
    return ItemLoss(loss, error.detach().abs())


def td_loss(prediction: Tensor, target: Tensor, weight: Tensor, huber: bool) -> TDLoss:
    """Return the weighted mean of `td_item_loss` and the signed error; all arguments [B]."""
    assert_rank(1, weight=weight)
    per_item = td_item_loss(prediction, target, huber)
    return TDLoss((weight * per_item.loss).mean(), (target - prediction).detach())


def twin_td_loss(q: Tensor, target: Tensor, weight: Tensor, max_error: float = 0.0) -> TDLoss:
    """Return the sum of both critics' weighted mean of half the squared error (Fujimoto et al. 2018).

    `td_error` is the mean of the two absolute errors, [B]: what prioritized replay wants.

    Args:
        q: Both critics' values, [2, B].
        target: The target they share, [B].
        weight: Importance weights, [B].
        max_error: Threshold of a Huber loss, beyond which an error pulls no harder; 0 is the squared loss.
    """
    assert_rank(2, q=q)
    assert_rank(1, target=target, weight=weight)
    error = q - target
    if max_error:
        per_item = functional.huber_loss(q, target.expand_as(q), reduction="none", delta=max_error)
    else:
        per_item = 0.5 * error.square()
    return TDLoss((weight * per_item).sum(dim=0).mean(), error.detach().abs().mean(dim=0))


def mask_illegal(q: Tensor, legal: Tensor | None) -> Tensor:
    """Return values whose largest is that of a legal action: others are -inf, of any shape."""
    return q if legal is None else q.masked_fill(~legal, float("-inf"))
