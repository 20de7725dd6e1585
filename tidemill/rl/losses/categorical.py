"""Distributions of returns over fixed values, the atoms (Bellemare et al. 2017), as pure functions."""

from __future__ import annotations

import torch
from torch import Tensor


def atoms(lowest: float, highest: float, count: int, device: torch.device | None = None) -> Tensor:
    """Return `count` evenly spaced values from `lowest` to `highest`, float32 [K]."""
    assert count >= 2, f"count is {count}, must be at least 2"
    assert lowest < highest, f"lowest {lowest} must be below highest {highest}"
    return torch.linspace(lowest, highest, count, device=device)


def expectation(logits: Tensor, support: Tensor) -> Tensor:
    """Return the mean of each distribution, [...], of logits [..., K] over the atoms `support` [K]."""
    return logits.softmax(dim=-1) @ support


def project(values: Tensor, probabilities: Tensor, support: Tensor) -> Tensor:
    """Return the distributions moved to the atoms (Bellemare et al. 2017, eq. 7), [B, K].

    The mass of a value between two atoms is split between them, more to the nearer one; the mass of a value
    beyond the first or last atom goes to that atom. Total mass is kept, and the mean too where no value is beyond.
    Time and memory grow with B * J, not with B * J * K. A GPU adds up in any order: there the last bits vary.

    Args:
        values: Where the mass is, e.g. return + discount * support, [B, J].
        probabilities: How much, [B, J].
        support: The atoms, evenly spaced and increasing, [K].
    """
    assert values.ndim == 2, f"values {tuple(values.shape)} must be [B, J]"
    assert values.shape == probabilities.shape, "values and probabilities differ in shape"
    assert support.ndim == 1, f"support {tuple(support.shape)} must be [K]"
    last = len(support) - 1
    place = ((values - support[0]) * (last / (support[-1] - support[0]))).clamp(0, last)  # in atoms, [B, J]
    below = place.floor().clamp(max=last - 1)
    above_share = place - below
    index = below.long().clamp(min=0)  # NaN has no atom, but must come out as NaN, not as a bad address
    moved = torch.zeros((len(values), last + 1), dtype=probabilities.dtype, device=values.device)
    moved.scatter_add_(1, index, probabilities * (1.0 - above_share))
    return moved.scatter_add_(1, index + 1, probabilities * above_share)


def categorical_target(
    n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_probabilities: Tensor, support: Tensor
) -> Tensor:
    """Return the distribution of return + discount * Z on the atoms, [B, K], without a gradient.

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_probabilities: Of the value Z after step k, [B, K].
        support: The atoms, [K].
    """
    assert n_step_return.ndim == bootstrap_discount.ndim == 1, "return and discount must be [B]"
    values = n_step_return[:, None] + bootstrap_discount[:, None] * support
    return project(values, bootstrap_probabilities, support).detach()


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return -sum(target * log softmax(logits)) of each item, [B]; both [B, K]."""
    assert logits.shape == target.shape, "logits and target differ in shape"
    return -(target * logits.log_softmax(dim=-1)).sum(dim=-1)


def divergence(logits: Tensor, target: Tensor) -> Tensor:
    """Return KL(target || softmax(logits)) of each item without a gradient, [B], never negative.

    It is the cross entropy less what no prediction can avoid, so a perfect one has 0: a priority
    (Hessel et al. 2018).
    """
    entropy = -torch.xlogy(target, target).sum(dim=-1)
    return (cross_entropy(logits, target) - entropy).detach().clamp(min=0.0)
