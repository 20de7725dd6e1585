"""Nim, an environment in which not every action is legal: each move takes 1, 2 or 3 of the remaining sticks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class Nim(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Who takes the last stick wins. The opponent, who moves second, takes any legal number.

    Observation: the sticks that are left, one-hot. Action a takes a + 1 sticks. Reward: 1 for a win, -1 for a loss.
    """

    def __init__(self, sticks: int = 10) -> None:
        """Set how many sticks there are at the start."""
        self.observation_space = spaces.Box(0, 1, (sticks + 1,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._sticks = self._left = sticks

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Lay all sticks."""
        super().reset(seed=seed, options=options)
        self._left = self._sticks
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Take sticks, and let the opponent take some."""
        self._left -= int(action) + 1
        reward = 1.0
        if self._left:
            self._left -= int(self.np_random.integers(1, min(3, self._left) + 1))
            reward = 0.0 if self._left else -1.0
        return self._observation(), reward, not self._left, False, self._info()

    def _observation(self) -> NDArray[np.float32]:
        observation = np.zeros(self._sticks + 1, np.float32)
        observation[self._left] = 1
        return observation

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.arange(1, 4) <= self._left}
