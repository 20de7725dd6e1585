"""The loss of two critics that share a target."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from tidemill.rl.losses.rank import assert_rank
from tidemill.rl.losses.td import TDLoss


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
