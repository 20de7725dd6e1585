"""The loss of R2D2, as pure functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from tidemill.rl.losses import ItemLoss, assert_rank, rescale, unscale


def sequence_target(n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor, rescaled: bool) -> Tensor:
    """Return the target of each step, without a gradient: h(R + discount * h^-1(Q(s', a'))), of any shape.

    Kapturowski et al. (2019), section 2.3; without rescaling h is the identity.
    """
    value = unscale(bootstrap_q) if rescaled else bootstrap_q
    # where, not a product: after a termination the row may be of another episode, and anything
    target = n_step_return + torch.where(bootstrap_discount > 0.0, bootstrap_discount * value, 0.0)
    return (rescale(target) if rescaled else target).detach()


def sequence_loss(q: Tensor, target: Tensor, is_trained: Tensor, priority_mix: float) -> ItemLoss:
    """Return half the sum of squared errors of each sequence, and its priority.

    The priority is eta * max |error| + (1 - eta) * mean |error| (ibid., section 2.3).

    Args:
        q: Values predicted for the actions taken, [U, B].
        target: What they should have been, [U, B].
        is_trained: Steps that count, bool [U, B].
        priority_mix: eta.
    """
    assert_rank(2, q=q, target=target, is_trained=is_trained)
    error = torch.where(is_trained, q - target, 0.0)
    size = error.detach().abs()
    mean = size.sum(dim=0) / is_trained.sum(dim=0).clamp(min=1)
    priority = priority_mix * size.amax(dim=0) + (1.0 - priority_mix) * mean
    return ItemLoss(0.5 * error.square().sum(dim=0), priority)
