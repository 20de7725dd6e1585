"""Temporal-difference losses of scalar values."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from tidemill.rl.losses.item import ItemLoss
from tidemill.rl.losses.rank import assert_rank


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
