"""Losses that agents share, as pure functions of tensors; an agent's own stand in its `loss.py`."""

from tidemill.rl.losses.advantages import Advantages, generalized_advantage, vtrace
from tidemill.rl.losses.quantile import quantile_huber_loss, quantile_target
from tidemill.rl.losses.td import ItemLoss, TDLoss, assert_rank, td_item_loss, td_loss, twin_td_loss
from tidemill.rl.losses.value_rescaling import rescale, unscale

__all__ = [
    "Advantages",
    "ItemLoss",
    "TDLoss",
    "assert_rank",
    "generalized_advantage",
    "quantile_huber_loss",
    "quantile_target",
    "rescale",
    "td_item_loss",
    "td_loss",
    "twin_td_loss",
    "unscale",
    "vtrace",
]
