"""The targets of Retrace, a pure function of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def retrace_target(
    reward: Tensor, discount: Tensor, trace: Tensor, next_value: Tensor, next_chosen_q: Tensor
) -> Tensor:
    """Return the target of each step of a window, [n, B], without a gradient (Munos et al. 2016, eq. 3 and 4).

    With G_n = V(s_n) it is G_t = r_t + d_t * (V(s_t+1) + c_t+1 * (G_t+1 - Q(s_t+1, a_t+1))), from the last step to the
    first: the difference in brackets is what the rest of the window knows better than the value.

    Args:
        reward: r_0 .. r_n-1, float32 [n, B].
        discount: d_t: gamma, or 0 where step t terminated, float32 [n, B].
        trace: c_1 .. c_n: lambda * min(1, pi(a|s) / mu(a|s)), and 0 where step t + 1 was not taken in the episode of
            step t; the last one counts for nothing, [n, B].
        next_value: V(s_1) .. V(s_n), the values of the observations that followed, [n, B].
        next_chosen_q: Q(s_1, a_1) .. Q(s_n, a_n), [n, B].
    """
    target = torch.empty_like(reward)
    correction = torch.zeros_like(reward[0])  # of the step after the window's last
    for step in range(len(reward) - 1, -1, -1):
        target[step] = reward[step] + discount[step] * (next_value[step] + correction)
        if step:
            correction = trace[step - 1] * (target[step] - next_chosen_q[step - 1])
    return target.detach()
