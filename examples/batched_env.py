"""Batched environments: one that NumPy steps all at once, and gymnasium's own vector of any registered one."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_STEP_S = 0.1


class PointMassVectorEnv(gymnasium.vector.VectorEnv[Floats, Floats, Any]):
    """N masses on a line, each to be brought to rest at 0 by a force; all are one array [N, 2]: position, velocity."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(self, num_envs: int, max_episode_steps: int = 50) -> None:
        """Make `num_envs` masses, whose episodes are cut after `max_episode_steps`."""
        self.num_envs, self._max_steps = num_envs, max_episode_steps
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._state = np.zeros((num_envs, 2), np.float32)
        self._steps = np.zeros(num_envs, np.int64)

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> tuple[Floats, dict[str, Any]]:
        """Begin an episode everywhere."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)  # type: ignore[arg-type]
        self._begin(np.ones(self.num_envs, np.bool_))
        return self._state.copy(), {}

    def step(self, actions: Floats) -> tuple[Floats, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Push every mass; one whose episode was cut in the step before begins the next one instead."""
        begins = self._steps >= self._max_steps
        force = actions[:, 0]
        self._state[:, 1] += force * _STEP_S
        self._state[:, 0] += self._state[:, 1] * _STEP_S
        reward = -np.square(self._state).sum(axis=1) - 0.1 * np.square(force)
        self._steps += 1
        self._begin(begins)
        reward[begins] = 0.0
        return self._state.copy(), reward, np.zeros_like(begins), self._steps >= self._max_steps, {}

    def _begin(self, where: NDArray[np.bool_]) -> None:
        self._state[where] = self._rng.uniform(-1.0, 1.0, (int(where.sum()), 2))
        self._steps[where] = 0


def make_vec(num_envs: int, env_id: str = "Pendulum-v1", max_episode_steps: int | None = None) -> Any:  # noqa: ANN401
    """Return gymnasium's own vector of a registered environment; with AsyncVectorEnv each would have a process."""

    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(env_id, max_episode_steps=max_episode_steps)

    return gymnasium.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
