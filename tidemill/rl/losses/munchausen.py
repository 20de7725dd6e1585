"""Munchausen's targets (Vieillard et al. 2020): a soft policy's value, and its own log-probability as a reward.

The policy is pi = softmax(Q / temperature) of the target network.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tidemill.rl.losses.td import assert_rank


def soft_value(values: Tensor, q: Tensor, temperature: float) -> Tensor:
    """Return the sum over actions of pi(a) * (Z_k(a) - temperature * log pi(a)), [B, K] (ibid., eq. 1).

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
    """Return what the reward of taking `action` grows by: scale * max(temperature * log pi(a), lowest), [B].

    It is never positive, and 0 for an action that the policy is sure of (ibid., eq. 1 and section 4.1).

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
