"""A custom environment: a corridor whose far end is worth going to."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Position = NDArray[np.float32]


class Corridor(gymnasium.Env[Position, np.int64]):
    """`length` places in a row; a step costs a little, the last place ends the episode with a reward of 1."""

    def __init__(self, length: int = 8, step_cost: float = 0.02) -> None:
        """Make a corridor; both arguments may be set by `env.kwargs`."""
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length, self._step_cost = length, step_cost
        self._place = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Position, dict[str, Any]]:
        """Begin at a random place of the first half."""
        super().reset(seed=seed, options=options)
        self._place = int(self.np_random.integers(self._length // 2))
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Position, float, bool, bool, dict[str, Any]]:
        """Go back (0) or on (1)."""
        self._place = max(self._place + (1 if action == 1 else -1), 0)
        is_over = self._place >= self._length - 1
        return self._observation(), 1.0 if is_over else -self._step_cost, is_over, False, {}

    def _observation(self) -> Position:
        return np.array([self._place / (self._length - 1)], np.float32)


gymnasium.register("Corridor-v0", "corridor:Corridor", max_episode_steps=100)
