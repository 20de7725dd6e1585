"""Any gymnasium environment, N of them stepped one after another in this thread.

The loop is our own instead of gymnasium.vector.SyncVectorEnv because each tick's observations are
written once, into the array the caller keeps, and no info dictionaries are merged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from tidemill.envs.interface import EpisodeSummary, Tick
from tidemill.envs.spaces import action_adapter, observation_format
from tidemill.errors import FatalError, InvalidArgument
from tidemill.types import EnvSpec

GymnasiumEnv = gymnasium.Env[Any, Any]


class GymnasiumVectorEnv:
    """`VectorEnv` over environments that one factory makes."""

    def __init__(self, make_one: Callable[[], GymnasiumEnv], num_envs: int) -> None:
        """Make the environments.

        Raises:
            ConfigError: The observation or action space is not supported.
        """
        self._envs = [make_one() for _ in range(num_envs)]
        space = self._envs[0].observation_space
        self._format = observation_format(space)
        self._actions = action_adapter(self._envs[0].action_space)
        self._spec = EnvSpec(
            self._format.shape,
            self._format.dtype,
            num_actions=self._actions.num_actions,
            action_shape=self._actions.shape,
        )
        self._action_shape = (num_envs, *self._actions.shape)
        self._ended = np.zeros(num_envs, np.bool_)
        self._returns = [0.0] * num_envs
        self._lengths = [0] * num_envs

    @property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of one environment."""
        return self._spec

    @property
    def num_envs(self) -> int:
        """Environments in the batch."""
        return len(self._envs)

    def reset(self, seed: int) -> NDArray[Any]:
        """Start every environment anew, environment i with seed + i; see `VectorEnv.reset`."""
        observation = self._new_observation()
        self._ended = np.zeros(self.num_envs, np.bool_)
        for index in range(self.num_envs):
            observation[index] = self._reset_one(index, seed + index)
        self._check_finite(observation, np.zeros(self.num_envs, np.float32))
        return observation

    def step(self, action: NDArray[Any]) -> Tick:
        """Act in every environment, or reset it if it had ended; see `VectorEnv.step`."""
        if action.shape != self._action_shape:
            raise InvalidArgument(f"action has shape {action.shape}, allowed: {self._action_shape}")
        was_reset = self._ended
        observation = self._new_observation()
        reward = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        for index, command in enumerate(self._actions.convert(action)):
            if was_reset[index]:
                observation[index] = self._reset_one(index, None)
            else:
                row = self._step_one(index, command)
                observation[index], reward[index], terminated[index], truncated[index] = row
        self._ended = terminated | truncated
        self._check_finite(observation, reward)
        episodes = tuple(self._summary(int(i), bool(terminated[i])) for i in np.flatnonzero(self._ended))
        return Tick(observation, reward, terminated, truncated, was_reset.copy(), was_reset, episodes)

    def render(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        """Return a picture of one environment; see `VectorEnv.render`."""
        env = self._envs[env_index]
        if env.render_mode != "rgb_array":
            return None
        picture: Any = env.render()
        return np.asarray(picture, np.uint8)

    def close(self) -> None:
        """Close every environment; closing twice does nothing."""
        for env in self._envs:
            env.close()

    def _new_observation(self) -> NDArray[Any]:
        return np.empty((self.num_envs, *self._format.shape), self._format.dtype)

    def _reset_one(self, index: int, seed: int | None) -> Any:
        self._returns[index], self._lengths[index] = 0.0, 0
        try:
            observation, _ = self._envs[index].reset(seed=seed)
        except Exception as error:
            raise FatalError(
                f"environment {index} at reset raised {type(error).__name__}: {error}"
            ) from error
        shape = np.shape(observation)
        if shape != self._format.shape:
            raise FatalError(
                f"environment {index} returned an observation of shape {shape}, "
                f"allowed by its observation space: {self._format.shape}"
            )
        return observation

    def _step_one(self, index: int, command: Any) -> tuple[Any, float, bool, bool]:
        self._lengths[index] += 1
        try:
            observation, reward, terminated, truncated, _ = self._envs[index].step(command)
        except Exception as error:
            raise FatalError(f"{self._place(index)} raised {type(error).__name__}: {error}") from error
        reward = float(reward)
        self._returns[index] += reward
        return observation, reward, bool(terminated), bool(truncated)

    def _summary(self, index: int, terminated: bool) -> EpisodeSummary:
        return EpisodeSummary(index, self._returns[index], self._lengths[index], terminated)

    def _check_finite(self, observation: NDArray[Any], reward: NDArray[np.float32]) -> None:
        """Raise FatalError if any environment returned NaN or infinity, which would poison the networks."""
        if self._format.dtype == "float32" and not np.isfinite(observation).all():
            index = next(i for i, row in enumerate(observation) if not np.isfinite(row).all())
            raise FatalError(f"{self._place(index)} returned a non-finite observation: {observation[index]}")
        if not np.isfinite(reward).all():
            index = int(np.argmin(np.isfinite(reward)))
            raise FatalError(f"{self._place(index)} returned a non-finite reward: {reward[index]}")

    def _place(self, index: int) -> str:
        return f"environment {index} at step {self._lengths[index]} of its episode"
