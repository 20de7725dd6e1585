"""Temporal-difference losses of scalar values, how targets are transformed, and what every loss reports and asserts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class ItemLoss(NamedTuple):
    """The loss of each item, before importance weights, and how surprising the item was.

    Attributes:
        loss: float32 [B].
        priority: Not negative, without a gradient, float32 [B].
    """

    loss: Tensor
    priority: Tensor


def assert_rank(rank: int, **tensors: Tensor) -> None:
    """Fail with the name and shape of a tensor that has another rank."""
    for name, tensor in tensors.items():
        assert tensor.ndim == rank, f"{name} must have rank {rank}, got shape {tuple(tensor.shape)}"


class TDLoss(NamedTuple):
    """A loss over a batch and what it learned about each item.

    Attributes:
        loss: Weighted mean over the batch, float32 [].
        td_error: target - prediction, without a gradient, float32 [B].
    """

    loss: Tensor
    td_error: Tensor


def td_item_loss(prediction: Tensor, target: Tensor, huber: bool) -> ItemLoss:
    """Return half the squared error of each item, or its Huber loss (threshold 1), and the absolute error; all [B]."""
    assert_rank(1, prediction=prediction, target=target)
    error = prediction - target
    loss = functional.smooth_l1_loss(prediction, target, reduction="none") if huber else 0.5 * error.square()
    return ItemLoss(loss, error.detach().abs())


def td_loss(prediction: Tensor, target: Tensor, weight: Tensor, huber: bool) -> TDLoss:
    """Return the weighted mean of `td_item_loss` and the signed error; all arguments [B]."""
    assert_rank(1, weight=weight)
    per_item = td_item_loss(prediction, target, huber)
    return TDLoss((weight * per_item.loss).mean(), (target - prediction).detach())


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


def sequence_priority(error: Tensor, is_trained: Tensor, priority_mix: float) -> Tensor:
    """Return eta * max |error| + (1 - eta) * mean |error| of each sequence, [B] (Kapturowski et al. 2019, section 2.3).

    Args:
        error: Absolute errors, 0 at steps that do not count, without a gradient, [B, U].
        is_trained: Steps that count, bool [B, U].
        priority_mix: eta.
    """
    assert_rank(2, error=error, is_trained=is_trained)
    mean = error.sum(dim=1) / is_trained.sum(dim=1).clamp(min=1)
    return priority_mix * error.amax(dim=1) + (1.0 - priority_mix) * mean


def mask_illegal(q: Tensor, legal: Tensor | None) -> Tensor:
    """Return values whose largest is that of a legal action: others are -inf, of any shape."""
    return q if legal is None else q.masked_fill(~legal, float("-inf"))


EPSILON = 1e-3
"""Slope that remains for large values; keeps the inverse's slope bounded."""


def rescale(value: Tensor) -> Tensor:
    """Return h(x) = sign(x) * (sqrt(|x| + 1) - 1) + epsilon * x, of any shape."""
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + EPSILON * value


def unscale(rescaled: Tensor) -> Tensor:
    """Return the inverse of `rescale` (Pohlen et al. 2018, proposition A.2), of any shape.

    The paper's ((sqrt(1 + 4 e (|x| + 1 + e)) - 1) / (2 e))^2 - 1 loses its digits in float32; multiplied out
    by the conjugate, the inner fraction is 2 (|x| + 1 + e) / (sqrt(...) + 1).
    """
    size = rescaled.abs()
    root = torch.sqrt(1.0 + 4.0 * EPSILON * (size + 1.0 + EPSILON))
    inner = 2.0 * (size + 1.0 + EPSILON) / (root + 1.0)
    return rescaled.sign() * (inner.square() - 1.0)


def soft_value(values: Tensor, q: Tensor, temperature: float) -> Tensor:
    """Return the sum over actions of pi(a) * (Z_k(a) - temperature * log pi(a)), [B, K] (Vieillard et al. 2020, eq. 1).

    That is the mean of Z_k under the policy, and temperature times the policy's entropy.

    Args:
        values: The numbers of each action, [B, A, K]: its value, or samples of its return's distribution.
        q: Their mean, [B, A]; -inf for an illegal action, of which at least one is none.
        temperature: Above 0; near 0 this is the greedy action's value.
    """
    assert_rank(3, values=values)
    policy = (q / temperature).softmax(dim=1)
    entropy: Tensor = torch.special.entr(policy).sum(dim=1, keepdim=True)
    return (policy[:, :, None] * values).sum(dim=1) + temperature * entropy


def log_policy_bonus(q: Tensor, action: Tensor, scale: float, temperature: float, lowest: float) -> Tensor:
    """Return the bonus for the reward of taking `action`: scale * max(temperature * log pi(a), lowest), [B].

    It is never positive, and 0 for an action that the policy is sure of (Vieillard et al. 2020, eq. 1 and section 4.1).

    Args:
        q: The mean value of each action, [B, A]; -inf for an illegal one.
        action: Taken, [B].
        scale: Alpha of the paper, 0 to 1.
        temperature: Above 0.
        lowest: Bound from below, l_0 of the paper, 0 or less.
    """
    assert_rank(2, q=q)
    assert_rank(1, action=action)
    log_policy = (q / temperature).log_softmax(dim=1).gather(1, action[:, None]).squeeze(1)
    bonus: Tensor = scale * (temperature * log_policy).clamp(min=lowest)
    return bonus
