"""Actions from a Gaussian squashed by tanh, and their gradients (Haarnoja et al. 2018, appendix C)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


class Sample(NamedTuple):
    """Actions drawn, and what their gradient needs.

    Attributes:
        action: tanh(mean + std * noise), [B, A].
        log_prob: Log-density of the action, [B].
        noise: The standard normal numbers it was made of, [B, A].
        std: Standard deviation before the squash, [B, A].
        free_log_std: Logarithm of it before it was clamped, [B, A].
    """

    action: Tensor
    log_prob: Tensor
    noise: Tensor
    std: Tensor
    free_log_std: Tensor


def split(head: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and clamped log standard deviation, each [B, A], of a network's output [B, 2 A]."""
    mean, free_log_std = head.chunk(2, dim=-1)
    return mean, free_log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def sample(head: Tensor, noise: Tensor) -> Sample:
    """Return the actions that standard normal `noise` [B, A] makes of a network's output [B, 2 A].

    Uses log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which is exact for large u.
    """
    assert head.ndim == 2, f"head {tuple(head.shape)} must be [B, 2 A]"
    assert noise.shape == (head.shape[0], head.shape[1] // 2), "head and noise differ in shape"
    mean, log_std = split(head)
    std = log_std.exp()
    raw = torch.addcmul(mean, std, noise)
    # the density of `raw`, with (raw - mean) / std = noise, less the log of the squash's slope
    constant = noise.shape[1] * (0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0))
    density = 2.0 * (functional.softplus(-2.0 * raw) + raw) - log_std - 0.5 * noise.square()
    return Sample(torch.tanh(raw), density.sum(dim=-1) - constant, noise, std, head.chunk(2, dim=-1)[1])


def head_gradient(drawn: Sample, action_gradient: Tensor, log_prob_gradient: Tensor) -> Tensor:
    """Return the gradient of the network's output, [B, 2 A].

    With u = mean + std * noise: d action / du = 1 - action^2, and d log_prob / du = 2 action; the log
    standard deviation moves u by std * noise and the log-density by -1 besides.

    Args:
        drawn: What `sample` returned.
        action_gradient: Gradient of a loss with respect to each action, [B, A].
        log_prob_gradient: The same for each item's log-density, equal for all items, [].
    """
    slope = torch.addcmul(action_gradient, action_gradient * drawn.action, drawn.action, value=-1.0)
    raw = torch.addcmul(slope, drawn.action, 2.0 * log_prob_gradient)
    log_std = raw * drawn.noise * drawn.std - log_prob_gradient
    # zero where the clamp holds it
    log_std = torch.ops.aten.hardtanh_backward(log_std, drawn.free_log_std, LOG_STD_MIN, LOG_STD_MAX)
    return torch.cat((raw, log_std), dim=-1)


def mode(head: Tensor) -> Tensor:
    """Return the squashed mean [B, A], the action of a deterministic evaluation."""
    return torch.tanh(head.chunk(2, dim=-1)[0])
