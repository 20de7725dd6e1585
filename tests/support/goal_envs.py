"""Environments with goals, right and wrong ones, reached by id as a user's own would be."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Goals = NDArray[np.float64]


class Point(gymnasium.Env[dict[str, Any], NDArray[np.float32]]):
    """A point in a 2x1 box moves by its action; the reward is minus its distance from the goal.

    `wrong` names what is: `info` and `optional_info` are looked at, `single` goals alone are taken, `shaped` rewards
    have more than compute_reward says, `one_end` is a compute_terminated for single goals, `raises` raises.
    """

    def __init__(self, wrong: str = "", ends: str = "never") -> None:
        """Set what is wrong, and whether the goal `ends` an episode: `never`, `always` or, without a function, `""`."""
        space = spaces.Box(-10.0, 10.0, (2, 1), np.float64)
        self.observation_space = spaces.Dict(
            {"observation": space, "achieved_goal": space, "desired_goal": space}
            if wrong != "no_goals"
            else {"observation": space}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._wrong, self._ends = wrong, ends
        if wrong == "no_reward":
            self.compute_reward = None  # type: ignore[assignment]
        if ends == "":
            self.compute_terminated = None  # type: ignore[assignment]
        self._place = self._goal = np.zeros((2, 1))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Goals], dict[str, Any]]:
        """Draw place and goal."""
        super().reset(seed=seed)
        self._place, self._goal = self.np_random.uniform(-3, 3, (2, 2, 1))
        return self._observation(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[dict[str, Goals], float, bool, bool, dict[str, Any]]:
        """Move."""
        self._place = np.clip(self._place + 0.1 * action.reshape(2, 1), -10, 10)
        distance = float(np.abs(self._place - self._goal).sum())
        return self._observation(), -distance - (self._wrong == "shaped"), False, False, {"scale": 1.0}

    def compute_reward(self, achieved_goal: Goals, desired_goal: Goals, info: Any) -> Any:  # noqa: ANN401
        """Return minus the distance of goals, of batches [B, 2, 1] too."""
        assert achieved_goal.dtype == np.float64
        if self._wrong == "raises":
            raise ValueError("no goal like that")
        if self._wrong == "single":
            return -float(np.abs(achieved_goal - desired_goal).sum())
        scale = {"info": lambda: info["scale"], "optional_info": lambda: info.get("scale", 1.0)}
        return -np.abs(achieved_goal - desired_goal).sum(axis=(-1, -2)) * scale.get(self._wrong, lambda: 1.0)()

    def compute_terminated(self, achieved_goal: Goals, desired_goal: Goals, info: Any) -> Any:  # noqa: ANN401
        """True if the goal ends the episode."""
        if self._wrong == "one_end":
            return bool(np.abs(achieved_goal - desired_goal).max() < 1e-9)
        ended = (achieved_goal == desired_goal).all(axis=(-1, -2))
        return ended if self._ends == "always" else False

    def _observation(self) -> dict[str, Goals]:
        here = self._place
        both = {"achieved_goal": here, "desired_goal": self._goal} if self._wrong != "no_goals" else {}
        return {"observation": here, **both}
