"""Losses of categorical value distributions (Bellemare et al. 2017, C51)."""

from __future__ import annotations

import torch
from torch import Tensor

from tidemill.rl.losses.item import ItemLoss
from tidemill.rl.losses.rank import assert_rank


def categorical_projection(atoms: Tensor, probability: Tensor, support: Tensor) -> Tensor:
    """Return the probabilities on a fixed support that a distribution on other atoms projects to, [B, K].

    Each atom's probability goes to its two neighbours on the support, in proportion to its nearness to each;
    what lies beyond an end goes to that end (ibid., eq. 7).

    Args:
        atoms: Where the distribution has its mass, [B, J].
        probability: How much of it, [B, J], each row summing to 1.
        support: Evenly spaced and rising, [K] with K >= 2.
    """
    assert_rank(2, atoms=atoms, probability=probability)
    assert_rank(1, support=support)
    assert atoms.shape == probability.shape, "atoms and probability differ in shape"
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    clipped = atoms.clamp(support[0], support[-1])
    # [B, K, J]: 1 where an atom lies on a point of the support, 0 from one spacing away
    nearness = (1.0 - (clipped[:, None, :] - support[None, :, None]).abs() / spacing).clamp(min=0.0)
    return (nearness * probability[:, None, :]).sum(dim=-1)


def categorical_target(
    n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_logits: Tensor, support: Tensor
) -> Tensor:
    """Return the projection of R + discount * Z(s', a') on the support, [B, K], without a gradient.

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_logits: Logits of the target network's Z(s', a'), [B, K].
        support: Atoms of every distribution, [K].
    """
    assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount)
    assert_rank(2, bootstrap_logits=bootstrap_logits)
    atoms = n_step_return[:, None] + bootstrap_discount[:, None] * support
    return categorical_projection(atoms, bootstrap_logits.softmax(dim=-1), support).detach()


def categorical_loss(logits: Tensor, target: Tensor) -> ItemLoss:
    """Return the cross-entropy of each item's distribution with its target, and as priority the KL divergence.

    The two differ by the target's entropy, which no gradient passes; Rainbow's priority is the divergence (Hessel
    et al. 2018, "Prioritized replay").

    Args:
        logits: Of the predicted distribution, [B, K].
        target: Probabilities, [B, K], without a gradient.
    """
    assert_rank(2, logits=logits, target=target)
    cross_entropy = -(target * logits.log_softmax(dim=-1)).sum(dim=-1)
    entropy = -torch.special.xlogy(target, target).sum(dim=-1)
    divergence = (cross_entropy.detach() - entropy).clamp(min=0.0)  # rounding may leave less than 0
    return ItemLoss(cross_entropy, divergence)
