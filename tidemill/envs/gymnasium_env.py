"""Any gymnasium environment, N of them stepped one after another in this thread.

The loop is our own and not gymnasium.vector.SyncVectorEnv: at the same speed it counts raw returns, gives
each step new arrays, and says which environment failed at which step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from tidemill.envs.action_mask import ActionMasks
from tidemill.envs.actions import action_adapter, check_shape
from tidemill.envs.checks import BOOLS, FAILURES, as_float32, fault, is_flag, place
from tidemill.envs.episode_counter import EpisodeCounter
from tidemill.envs.interface import VectorStep
from tidemill.envs.observations import observation_format
from tidemill.envs.pictures import as_picture
from tidemill.errors import FatalError, InvalidArgument
from tidemill.observation_parts import stored
from tidemill.types import EnvSpec

GymnasiumEnv = gymnasium.Env[Any, Any]

_Outcome = tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]
"""Observation, raw reward, terminated and truncated of all environments."""


class GymnasiumVectorEnv:
    """`VectorEnv` over environments that one factory makes."""

    def __init__(
        self,
        make_one: Callable[[], GymnasiumEnv],
        num_envs: int,
        *,
        mask_key: str = "",
        joint_actions: bool = False,
        observation_stack: int = 1,
    ) -> None:
        """Make the environments.

        Args:
            make_one: Makes one.
            num_envs: N.
            mask_key: Of their infos, where the action mask is; nothing without one.
            joint_actions: Whether every combination of several choices is one discrete action.
            observation_stack: Newest observations the network sees at once; only reported in the spec.

        Raises:
            ConfigError: The observation or action space is not supported.
        """
        self._envs = [make_one() for _ in range(num_envs)]
        space = self._envs[0].observation_space
        self._format = observation_format(space)
        self._dtype = np.dtype(self._format.dtype)
        self._actions = action_adapter(self._envs[0].action_space, joint=joint_actions)
        self._spec = EnvSpec(
            self._format.shape,
            self._format.dtype,
            observation_stack,
            num_actions=self._actions.num_actions,
            action_shape=self._actions.shape,
            masks_actions=bool(mask_key),
            action_sizes=self._actions.sizes,
            observation_parts=self._format.parts,
        )
        self._masks = ActionMasks(mask_key, num_envs, self._spec.action_options) if mask_key else None
        self._infos: list[Mapping[str, Any]] = [{}] * num_envs
        self._action_shape = (num_envs, *self._actions.shape)
        self._ended = np.zeros(num_envs, np.bool_)
        self._counter = EpisodeCounter(num_envs)

    @property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of one environment."""
        return self._spec

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the parts of an observation that are text, which is neither stored nor seen."""
        return self._format.texts

    @property
    def has_step_limit(self) -> bool:
        """Whether a wrapper of gymnasium's cuts episodes; of an environment that counts by itself nothing is known."""
        env: gymnasium.Env[Any, Any] = self._envs[0]
        while isinstance(env, gymnasium.Wrapper) and not isinstance(env, gymnasium.wrappers.TimeLimit):
            env = env.env
        return isinstance(env, gymnasium.wrappers.TimeLimit)

    @property
    def num_envs(self) -> int:
        """Environments in the batch."""
        return len(self._envs)

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        """Which actions are legal at the newest observations, [N, A]; see `MasksActions`."""
        assert self._masks is not None, "the environments have no action masks"
        return self._masks.newest

    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every environment, environment i with seed + i; see `VectorEnv.reset`."""
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._counter.clear()
        observation = self._new_observation()
        for index in range(self.num_envs):
            observation[index] = self._first_observation(index, seed + index)
        self._format.check_finite(observation, self._counter.returns, self._counter.lengths)
        if self._masks is not None:
            self._masks.read(self._infos, self._ended, self._counter.lengths)
        return observation

    def step(self, action: NDArray[Any]) -> VectorStep:
        """Act in every environment, or reset it if it had ended; see `VectorEnv.step`."""
        check_shape(action, self._action_shape)
        is_reset_step = self._ended
        commands = list(self._actions.convert(action))
        if self._masks is not None:
            self._masks.check_legal(action, is_reset_step, self._counter.lengths)
        observation, raw_reward, terminated, truncated = self._step_all(commands, is_reset_step)
        self._counter.add(raw_reward, is_reset_step)
        reward = as_float32(raw_reward)
        self._format.check_finite(observation, reward, self._counter.lengths)
        self._ended = terminated | truncated
        if self._masks is not None:
            self._masks.read(self._infos, self._ended, self._counter.lengths)
        return VectorStep(
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            is_first=is_reset_step.copy(),
            is_reset_step=is_reset_step,
            episodes=self._counter.finish(self._ended, terminated),
        )

    def render(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        """Return a picture of one environment; see `VectorEnv.render`."""
        env = self._envs[env_index]
        if env.render_mode not in ("rgb_array", "rgb_array_list"):
            return None
        try:
            picture: Any = env.render()
        except FAILURES as error:
            at = place(env_index, self._counter.lengths[env_index])
            raise FatalError(f"{at} cannot be rendered, {type(error).__name__}: {error}") from error
        return as_picture(picture)

    def close(self) -> None:
        """Close every environment; closing twice does nothing."""
        for env in self._envs:
            env.close()

    def _new_observation(self) -> NDArray[Any]:
        return np.empty((self.num_envs, *self._format.shape), self._format.dtype)

    def _first_observation(self, index: int, seed: int) -> NDArray[Any]:
        """Reset one environment; return its observation as it is stored."""
        try:
            returned = self._envs[index].reset(seed=seed)
        except FAILURES as error:
            raise FatalError(f"{place(index, 0)} {fault(None, reset=True, error=error)}") from error
        if wrong := fault(returned, reset=True):
            raise FatalError(f"{place(index, 0)} {wrong}")
        observation, self._infos[index] = returned
        try:
            return self._row(observation)
        except InvalidArgument as error:
            raise FatalError(f"{place(index, 0)} returned an {error}") from error

    def _row(self, observation: Any) -> NDArray[Any]:  # noqa: ANN401 - the user's
        """Return an observation as it is stored; raises InvalidArgument if it is not as its space says."""
        if self._format.parts:
            return self._format.pack(observation)
        row = np.asarray(observation)
        if row.shape != self._format.shape:  # NumPy would repeat a smaller one
            allowed = f"allowed by its observation space: {self._format.shape}"
            raise InvalidArgument(f"observation of shape {row.shape}, {allowed}")
        return stored(row, self._dtype)

    def _step_all(self, commands: Sequence[Any], is_reset_step: NDArray[np.bool_]) -> _Outcome:
        """Step or reset each environment; plain lists, because writing single elements of arrays is slow."""
        observation = self._new_observation()
        reward = [0.0] * self.num_envs
        terminated, truncated = [False] * self.num_envs, [False] * self.num_envs
        index = 0
        returned: Any = None
        try:
            for index, (env, reset) in enumerate(zip(self._envs, is_reset_step.tolist(), strict=True)):
                returned = None
                if reset:
                    returned = env.reset()
                    row, self._infos[index] = returned
                else:
                    returned = env.step(commands[index])
                    row, gain, terminated[index], truncated[index], info = returned
                    if isinstance(gain, np.ndarray) and gain.ndim:
                        raise TypeError  # NumPy would take one of a single number
                    flags = terminated[index], truncated[index]
                    if not (type(flags[0]) in BOOLS and type(flags[1]) in BOOLS) and not all(map(is_flag, flags)):
                        raise TypeError
                    reward[index], self._infos[index] = float(gain), info
                    if terminated[index] and info.get("TimeLimit.truncated"):
                        terminated[index], truncated[index] = False, True  # how older environments report a limit
                observation[index] = self._row(row)
        except FAILURES as error:
            at = place(index, self._counter.lengths[index] + (not is_reset_step[index]))
            if isinstance(error, InvalidArgument):
                raise FatalError(f"{at} returned an {error}") from error
            wrong = fault(returned, reset=bool(is_reset_step[index]), error=error)
            raise FatalError(f"{at} {wrong}") from error
        ends = np.array((terminated, truncated), np.bool_)
        return observation, np.array(reward, np.float64), ends[0], ends[1]
