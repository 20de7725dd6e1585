"""Any gymnasium environment, N of them stepped one after another in this thread.

The loop is our own and not gymnasium.vector.SyncVectorEnv: at the same speed it counts raw returns, gives
each step new arrays, and says which environment failed at which step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from tidemill.envs.actions import action_adapter, check_shape
from tidemill.envs.episode_counter import EpisodeCounter
from tidemill.envs.interface import VectorStep
from tidemill.envs.observations import observation_format
from tidemill.errors import FatalError
from tidemill.types import EnvSpec

GymnasiumEnv = gymnasium.Env[Any, Any]

_Outcome = tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]
"""Observation, raw reward, terminated and truncated of all environments."""


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
        self._counter = EpisodeCounter(num_envs)

    @property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of one environment."""
        return self._spec

    @property
    def num_envs(self) -> int:
        """Environments in the batch."""
        return len(self._envs)

    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every environment, environment i with seed + i; see `VectorEnv.reset`."""
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._counter.clear()
        observation = self._new_observation()
        for index in range(self.num_envs):
            observation[index] = self._first_observation(index, seed + index)
        check_finite(observation, self._counter.returns, self._counter.lengths)
        return observation

    def step(self, action: NDArray[Any]) -> VectorStep:
        """Act in every environment, or reset it if it had ended; see `VectorEnv.step`."""
        check_shape(action, self._action_shape)
        is_reset_step = self._ended
        observation, reward, terminated, truncated = self._step_all(list(self._actions.convert(action)), is_reset_step)
        self._counter.add(reward, is_reset_step)
        check_finite(observation, reward, self._counter.lengths)
        self._ended = terminated | truncated
        return VectorStep(
            observation=observation,
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            is_first=is_reset_step.copy(),
            is_reset_step=is_reset_step,
            episodes=self._counter.finish(self._ended, terminated),
        )

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

    def _first_observation(self, index: int, seed: int) -> NDArray[Any]:
        """Reset one environment and check the shape, because numpy would broadcast a wrong one."""
        try:
            observation, _ = self._envs[index].reset(seed=seed)
        except Exception as error:
            raise FatalError(f"{_place(index, 0)} raised {type(error).__name__}: {error}") from error
        first = np.asarray(observation)
        if first.shape != self._format.shape:
            raise FatalError(
                f"{_place(index, 0)} returned an observation of shape {first.shape}, "
                f"allowed by its observation space: {self._format.shape}"
            )
        return first

    def _step_all(self, commands: Sequence[Any], is_reset_step: NDArray[np.bool_]) -> _Outcome:
        """Step or reset each environment; plain lists, because writing single elements of arrays is slow."""
        observation = self._new_observation()
        reward = [0.0] * self.num_envs
        terminated, truncated = [False] * self.num_envs, [False] * self.num_envs
        index = 0
        try:
            for index, (env, reset) in enumerate(zip(self._envs, is_reset_step.tolist(), strict=True)):
                if reset:
                    observation[index], _ = env.reset()
                else:
                    row, gain, terminated[index], truncated[index], info = env.step(commands[index])
                    observation[index], reward[index] = row, float(gain)
                    if terminated[index] and info.get("TimeLimit.truncated"):
                        terminated[index], truncated[index] = False, True  # how older environments report a limit
        except Exception as error:
            step = self._counter.lengths[index] + (not is_reset_step[index])
            raise FatalError(f"{_place(index, step)} raised {type(error).__name__}: {error}") from error
        flags = np.array((terminated, truncated), np.bool_)
        return observation, np.array(reward, np.float64), flags[0], flags[1]


def check_finite(observation: NDArray[Any], reward: NDArray[np.float64], lengths: NDArray[np.int64]) -> None:
    """Raise FatalError if any environment returned NaN or infinity, which would poison the networks.

    Args:
        observation: [N, ...].
        reward: [N].
        lengths: Agent decisions of each episode so far, [N].
    """
    for name, rows in (("observation", observation), ("reward", reward)):
        if rows.dtype != np.uint8 and not np.isfinite(rows).all():
            index = next(i for i, row in enumerate(rows) if not np.isfinite(row).all())
            raise FatalError(f"{_place(index, lengths[index])} returned a non-finite {name}: {rows[index]}")


def _place(index: int, step: int) -> str:
    """Return where something went wrong; step 0 is the reset."""
    return f"environment {index} at step {step} of its episode"
