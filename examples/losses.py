"""A custom loss for DQN: log-cosh, which is smooth and grows linearly."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional


def log_cosh(
    chosen_q: Tensor, n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss of each item and its priority, |error|, both float32 [B].

    Args:
        chosen_q: The network's number for the action taken, [B, 1].
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_q: The target network's number for the action chosen after step k, [B, 1].
    """
    target = n_step_return + bootstrap_discount * bootstrap_q.squeeze(-1)
    error = chosen_q.squeeze(-1) - target.detach()
    return error + functional.softplus(-2.0 * error) - math.log(2.0), error.detach().abs()
