"""An environment whose every return is known: the seed decides how long an episode lasts and what it brings."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray


class LineEnv(gymnasium.Env[Any, Any]):
    """An episode of seed s lasts `1 + s % period` steps of reward 1 each, plus the action taken.

    So with action 0 the return is the length, and the mean of seeds 0 .. period - 1 is (period + 1) / 2. A
    protocol that takes the first episodes to end would see the short ones more often.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, period: int = 10) -> None:
        self._period, self._left, self._seed = period, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the episode of a seed; without one, a short episode that no protocol may count."""
        self._seed = -1 if seed is None else seed
        self._left = 1 if seed is None else 1 + seed % self._period
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go one step on."""
        self._left -= 1
        return self._observation(), 1.0 + action, self._left == 0, False, {}

    def _observation(self) -> NDArray[np.float32]:
        return np.array([self._seed, self._left], np.float32)
