"""Advantages of the actions of a rollout: generalized advantage estimation and V-trace, as pure functions.

Both go through T transitions in time order, [T, B], of B streams that may hold the ends of episodes. `discount` is
gamma * (1 - terminated): a terminated step has no value beyond it. `continues` is False where an episode ended, by
termination or by truncation: nothing flows back from the next episode, while a truncated step still bootstraps from
`next_value`, the value of its last observation.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tidemill.rl.losses.td import assert_rank


class Advantages(NamedTuple):
    """Targets of policy and values, without gradients.

    Attributes:
        advantage: How much better each action was than expected, [T, B].
        target: What each value should have been, [T, B].
    """

    advantage: Tensor
    target: Tensor


def generalized_advantage(
    reward: Tensor, discount: Tensor, continues: Tensor, value: Tensor, next_value: Tensor, decay: float
) -> Advantages:
    """Return A_t = delta_t + discount_t * lambda * A_t+1 and the targets A_t + V_t (Schulman et al. 2016, eq. 16).

    With delta_t = r_t + discount_t * V(s_t+1) - V(s_t). A decay of 1 gives discounted returns less the value, 0 gives
    one-step errors.

    Args:
        reward: r_t, [T, B].
        discount: gamma, or 0 where step t terminated, [T, B].
        continues: Whether step t + 1 belongs to the episode of step t, bool [T, B].
        value: V(s_t), [T, B].
        next_value: V of the observation that followed step t, [T, B].
        decay: Lambda, 0 to 1.
    """
    assert_rank(2, reward=reward, discount=discount, continues=continues, value=value, next_value=next_value)
    error = (reward + discount * next_value - value).detach()
    trace = decay * discount * continues
    advantage = backwards(error, trace)
    return Advantages(advantage, advantage + value.detach())


def vtrace(  # noqa: PLR0913 - five columns of a rollout, the ratio, and the three bounds of the formula
    log_ratio: Tensor,
    reward: Tensor,
    discount: Tensor,
    continues: Tensor,
    value: Tensor,
    next_value: Tensor,
    *,
    max_rho: float = 1.0,
    max_c: float = 1.0,
    decay: float = 1.0,
) -> Advantages:
    """Return the targets and advantages of V-trace (Espeholt et al. 2018, eq. 1 and section 4.2).

    With rho_t = min(max_rho, pi/mu) and c_t = decay * min(max_c, pi/mu):
    v_t = V(s_t) + rho_t * delta_t + discount_t * c_t * (v_t+1 - V(s_t+1)), and the advantage is
    rho_t * (r_t + discount_t * v_t+1 - V(s_t)), with a decay below 1 of the mix decay * v_t+1 + (1 - decay) * V(s_t+1)
    in place of v_t+1, as rlax has it. Where the episode ends, or the rollout, v_t+1 is `next_value`.

    Args:
        log_ratio: log pi(a_t|s_t) - log mu(a_t|s_t), of the learner's and of the acting policy, [T, B].
        reward: r_t, [T, B].
        discount: gamma, or 0 where step t terminated, [T, B].
        continues: Whether step t + 1 belongs to the episode of step t, bool [T, B].
        value: V(s_t), [T, B].
        next_value: V of the observation that followed step t, [T, B].
        max_rho: Bound of rho, at least `max_c`; it decides which policy's values are learned.
        max_c: Bound of c; it decides how fast.
        decay: Lambda of the traces, 0 to 1.
    """
    assert_rank(2, log_ratio=log_ratio, reward=reward, discount=discount, continues=continues)
    assert_rank(2, value=value, next_value=next_value)
    ratio, value, next_value = log_ratio.detach().exp(), value.detach(), next_value.detach()
    rho = ratio.clamp(max=max_rho)
    error = rho * (reward + discount * next_value - value)
    correction = backwards(error, decay * ratio.clamp(max=max_c) * discount * continues)  # v_t - V(s_t)
    following = decay * continues * torch.cat((correction[1:], torch.zeros_like(correction[:1])))
    advantage = rho * (reward + discount * (next_value + following) - value)
    return Advantages(advantage, value + correction)


def backwards(error: Tensor, trace: Tensor) -> Tensor:
    """Return x_t = error_t + trace_t * x_t+1 of all steps, [T, B], with 0 after the last."""
    total = torch.empty_like(error)
    newest = torch.zeros_like(error[0])
    for step in range(len(error) - 1, -1, -1):
        newest = error[step] + trace[step] * newest
        total[step] = newest
    return total
