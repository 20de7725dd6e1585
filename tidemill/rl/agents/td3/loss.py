"""The losses of TD3, as pure functions of tensors; the critics' own is `tidemill.rl.losses.twin_td_loss`."""

from __future__ import annotations

import torch
from torch import Tensor

from tidemill.rl.losses import assert_rank


def smoothed_action(action: Tensor, noise: Tensor, limit: float) -> Tensor:
    """Return clip(action + clip(noise, -limit, limit), -1, 1), [B, A] (Fujimoto et al. 2018, section 5.3)."""
    assert_rank(2, action=action, noise=noise)
    return (action + noise.clamp(-limit, limit)).clamp(-1.0, 1.0)


def clipped_double_q_target(n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor) -> Tensor:
    """Return R + discount * min of both Q'(s', a'), [B], without a gradient (ibid., eq. 10).

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_q: Both target critics' values of the smoothed action, [2, B].
    """
    assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount)
    assert_rank(2, bootstrap_q=bootstrap_q)
    smaller = torch.minimum(bootstrap_q[0], bootstrap_q[1])
    return (n_step_return + bootstrap_discount * smaller).detach()


def actor_loss(q: Tensor) -> Tensor:
    """Return -mean Q1(s, mu(s)), []: the first critic alone leads the actor (ibid., algorithm 1).

    Args:
        q: Both critics' values of the actor's actions, [2, B]; only the actor's parameters may follow the gradient.
    """
    assert_rank(2, q=q)
    return -q[0].mean()
