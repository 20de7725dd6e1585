"""Losses that agents share, as pure functions of tensors; an agent's own are in its module of `agents`."""

from tidemill.rl.losses.advantages import Advantages, generalized_advantage, vtrace
from tidemill.rl.losses.quantile import even_levels, quantile_huber_loss, quantile_target
from tidemill.rl.losses.td import (
    ItemLoss,
    TDLoss,
    assert_rank,
    log_policy_bonus,
    mask_illegal,
    rescale,
    sequence_priority,
    soft_value,
    td_item_loss,
    td_loss,
    twin_td_loss,
    unscale,
)

__all__ = [
    "Advantages",
    "ItemLoss",
    "TDLoss",
    "assert_rank",
    "even_levels",
    "generalized_advantage",
    "log_policy_bonus",
    "mask_illegal",
    "quantile_huber_loss",
    "quantile_target",
    "rescale",
    "sequence_priority",
    "soft_value",
    "td_item_loss",
    "td_loss",
    "twin_td_loss",
    "unscale",
    "vtrace",
]
