"""Bit flipping, an environment with goals: of n bits each action flips one, until they are those of the goal."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Bits = NDArray[np.int8]


class BitFlip(gymnasium.Env[dict[str, Any], np.int64]):
    """The example of Andrychowicz et al. (2017, section 3.1): without hindsight hopeless for many bits.

    Observation: the bits, which are also the goal achieved, and those desired. Reward: 0 for the goal, -1 for all else.
    An episode ends at the goal, and is cut after as many flips as there are bits.
    """

    def __init__(self, bits: int = 10) -> None:
        """Set how many bits there are."""
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict({name: spaces.MultiBinary(bits) for name in names})
        self.action_space = spaces.Discrete(bits)
        self._bits = self._goal = np.zeros(bits, np.int8)
        self._flips = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Bits], dict[str, Any]]:
        """Draw the bits and another goal."""
        super().reset(seed=seed, options=options)
        self._flips, size = 0, len(self._bits)
        self._bits = self._goal = self.np_random.integers(2, size=size, dtype=np.int8)
        while np.array_equal(self._bits, self._goal):
            self._goal = self.np_random.integers(2, size=size, dtype=np.int8)
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Bits], float, bool, bool, dict[str, Any]]:
        """Flip one bit."""
        self._bits = self._bits ^ (np.arange(len(self._bits)) == action)
        self._flips += 1
        reward = float(self.compute_reward(self._bits, self._goal, {}))
        terminated = bool(self.compute_terminated(self._bits, self._goal, {}))
        return self._observation(), reward, terminated, self._flips == len(self._bits), {}

    def compute_reward(self, achieved_goal: Bits, desired_goal: Bits, _info: dict[str, Any]) -> NDArray[np.float64]:
        """Return the reward of one pair of goals, [bits] each, or of a batch of them, [B, bits]."""
        return np.asarray((achieved_goal == desired_goal).all(axis=-1) - 1.0)

    def compute_terminated(self, achieved_goal: Bits, desired_goal: Bits, _info: dict[str, Any]) -> NDArray[np.bool_]:
        """True where the episode ends, for one pair of goals or for a batch."""
        return np.asarray((achieved_goal == desired_goal).all(axis=-1))

    def _observation(self) -> dict[str, Bits]:
        return {"observation": self._bits, "achieved_goal": self._bits, "desired_goal": self._goal}
