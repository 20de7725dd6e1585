"""The losses of D4PG, as pure functions; distributions over atoms are in `tidemill.rl.losses.categorical`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tidemill.rl.losses import assert_rank
from tidemill.rl.losses.categorical import cross_entropy, divergence, expectation


class CriticLoss(NamedTuple):
    """The critic's loss over a batch and what it learned about each item.

    Attributes:
        loss: Weighted mean over the batch, float32 [].
        divergence: Of each item's prediction from its target, without a gradient, never negative, float32 [B].
    """

    loss: Tensor
    divergence: Tensor


def critic_loss(logits: Tensor, target: Tensor, weight: Tensor) -> CriticLoss:
    """Return the weighted mean of the cross entropy (Barth-Maron et al. 2018, algorithm 1).

    Args:
        logits: Of the predicted distributions, [B, K].
        target: The projected target distributions, [B, K].
        weight: Importance weights, [B].
    """
    assert_rank(2, logits=logits, target=target)
    assert_rank(1, weight=weight)
    return CriticLoss((weight * cross_entropy(logits, target)).mean(), divergence(logits, target))


def actor_loss(logits: Tensor, support: Tensor) -> Tensor:
    """Return minus the mean expected return, [] (ibid., eq. 4).

    Args:
        logits: The critic's distributions of the actor's actions, [B, K]; only the actor's parameters may follow
            the gradient.
        support: The atoms, [K].
    """
    assert_rank(2, logits=logits)
    return -expectation(logits, support).mean()
