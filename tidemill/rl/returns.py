"""n-step returns of a batch of windows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class NStep(NamedTuple):
    """Inputs of an n-step target besides the bootstrap value; all of shape [B].

    Attributes:
        return_: Discounted sum of the rewards summed, float32.
        discount: Factor of the bootstrap value: gamma**k, or 0 where the episode terminated, float32.
        bootstrap_index: k, the number of rewards summed and the step to bootstrap from, int64, 1..n.
    """

    return_: NDArray[np.float32]
    discount: NDArray[np.float32]
    bootstrap_index: NDArray[np.int64]


def n_step(
    reward: NDArray[np.float32], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], gamma: float
) -> NStep:
    """Return the n-step return of each window, cut at the first step that ends its episode.

    A truncated step ends the sum but not the value: the window bootstraps from the step after it,
    which holds the episode's last observation (Sutton & Barto, 7.1; Pardo et al. 2018 for truncation).

    Args:
        reward: Rewards r_1 .. r_n that follow the first action, [B, n].
        terminated: Whether the same step ended the episode's value, [B, n].
        truncated: Whether the same step only cut the episode off, [B, n].
        gamma: Discount of one step, 0..1.
    """
    assert reward.ndim == 2, f"reward {reward.shape} must be [B, n]"
    assert reward.shape == terminated.shape == truncated.shape, "reward, terminated and truncated differ in shape"
    batch, n = reward.shape
    ends = terminated | truncated
    last = np.where(ends.any(axis=1), ends.argmax(axis=1), n - 1)  # position of the last reward summed
    powers = gamma ** np.arange(n + 1, dtype=np.float64)
    summed = np.arange(n) <= last[:, None]
    # where, not a product: a reward after the end is never looked at, not even a non-finite one
    return_ = np.where(summed, reward, 0.0) @ powers[:n]
    discount = np.where(terminated[np.arange(batch), last], 0.0, powers[last + 1])
    return NStep(return_.astype(np.float32), discount.astype(np.float32), (last + 1).astype(np.int64))
