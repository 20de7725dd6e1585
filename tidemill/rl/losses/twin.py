"""The loss of two critics that share a target."""

from __future__ import annotations

from torch import Tensor

from tidemill.rl.losses.rank import assert_rank
from tidemill.rl.losses.td import TDLoss


def twin_td_loss(q: Tensor, target: Tensor, weight: Tensor) -> TDLoss:
    """Return the sum of both critics' weighted mean of half the squared error (Fujimoto et al. 2018).

    `td_error` is the mean of the two absolute errors, [B]: what prioritized replay wants.

    Args:
        q: Both critics' values, [2, B].
        target: The target they share, [B].
        weight: Importance weights, [B].
    """
    assert_rank(2, q=q)
    assert_rank(1, target=target, weight=weight)
    error = q - target
    loss = 0.5 * (weight * error.square()).sum(dim=0).mean()
    return TDLoss(loss, error.detach().abs().mean(dim=0))
