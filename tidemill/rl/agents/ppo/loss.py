"""The losses of PPO, as pure functions of tensors (Schulman et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from tidemill.rl.losses import assert_rank


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of x [M] where mask is 1, []; 0 where it is nowhere."""
    return (x * mask).sum() / mask.sum().clamp(min=1.0)


def normalized(advantage: Tensor, mask: Tensor) -> Tensor:
    """Return advantages [M] of mean 0 and standard deviation 1 (with Bessel's correction) where mask is 1."""
    centered = advantage - masked_mean(advantage, mask)
    variance = (centered.square() * mask).sum() / (mask.sum() - 1.0).clamp(min=1.0)
    return centered / (variance.sqrt() + 1e-8)


def clipped_policy_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return -min(ratio * A, clip(ratio, 1 - e, 1 + e) * A) of each action, [M] (ibid., eq. 7).

    Args:
        log_ratio: log pi(a|s) less that of the policy that acted, [M].
        advantage: Of each action, without a gradient, [M].
        clip: e.
    """
    assert_rank(1, log_ratio=log_ratio, advantage=advantage)
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def value_loss(value: Tensor, target: Tensor, old_value: Tensor, clip: float | None) -> Tensor:
    """Return half the squared error of each value, [M]; with a clip the larger one of it and of the clipped value's.

    The clipped value is at most `clip` away from `old_value`, that before the update, as in OpenAI's baselines.
    """
    assert_rank(1, value=value, target=target, old_value=old_value)
    error = (value - target).square()
    if clip is not None:
        moved = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (moved - target).square())
    return 0.5 * error
