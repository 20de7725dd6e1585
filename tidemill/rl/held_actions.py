"""Temporally extended exploration: now and then an environment holds one random action for a while.

After Dabney, Ostrovski and Barreto (2021), "Temporally-Extended epsilon-Greedy Exploration", with a uniform
duration and a uniform continuous action. Noise that is drawn anew at each step averages out: it never keeps an engine
off for long enough to see what that would bring.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class HeldActions:
    """Which of N environments hold a random action now, and which action."""

    def __init__(self, probability: float, steps: int, rng: np.random.Generator) -> None:
        """Hold nothing yet.

        Args:
            probability: That an environment which holds none begins to, at each step.
            steps: Longest hold; the shortest is a third of it.
            rng: Draws beginnings, durations and actions.
        """
        self._probability, self._steps, self._rng = probability, steps, rng
        self._left = np.zeros(0, dtype=np.int64)
        self._held: Floats = np.zeros((0, 0), dtype=np.float32)

    def replace(self, action: Floats, may_hold: NDArray[np.bool_]) -> Floats:
        """Return the actions of one tick, with those held in place of the policy's.

        Args:
            action: The policy's, [N, A].
            may_hold: Environments that explore in this way, [N].
        """
        if len(self._left) != len(action):
            self._left, self._held = np.zeros(len(action), dtype=np.int64), np.zeros_like(action)
        begins = may_hold & (self._left == 0) & (self._rng.random(len(action)) < self._probability)
        count = int(np.count_nonzero(begins))
        shortest = max(self._steps // 3, 1)
        self._left[begins] = self._rng.integers(shortest, self._steps + 1, count)
        self._held[begins] = self._rng.uniform(-1.0, 1.0, (count, action.shape[1]))
        holds = self._left > 0
        self._left[holds] -= 1
        return np.where(holds[:, None], self._held, action)
