"""First priorities, computed where the data is made (Horgan et al. 2018, section 3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.rl.returns import n_step

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


def td_error_priority(
    q_taken: Floats, q_max: Floats, reward: Floats, terminated: Bools, truncated: Bools, gamma: float
) -> Floats:
    """Return |n-step TD error| of the window that starts at the oldest of n + 1 ticks, float32 [N].

    With equal online and target parameters it is the priority the learner's update computes.

    Args:
        q_taken: Q of the action taken, [n + 1, N], oldest tick first.
        q_max: Largest Q of the tick's observation, [n + 1, N].
        reward: Reward after the tick's action, [n + 1, N].
        terminated: Whether the tick's action ended the episode's value, [n + 1, N].
        truncated: Whether it only cut the episode off, [n + 1, N].
        gamma: Discount of one step.
    """
    assert q_taken.shape == q_max.shape == reward.shape == terminated.shape == truncated.shape
    assert q_taken.ndim == 2, f"q_taken {q_taken.shape} must be [n + 1, N] with n >= 1"
    target = n_step(reward[:-1].T, terminated[:-1].T, truncated[:-1].T, gamma)
    bootstrap = q_max[target.bootstrap_index, np.arange(q_max.shape[1])]
    # where, not a product: the row after a terminated step may be of another episode, and anything
    value = np.where(target.discount > 0.0, target.discount * bootstrap, np.float32(0.0))
    priority: Floats = np.abs(target.return_ + value - q_taken[0]).astype(np.float32)
    return priority
