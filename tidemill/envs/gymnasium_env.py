"""Any gymnasium environment, N of them stepped one after another in this thread.

The loop is our own and not gymnasium.vector.SyncVectorEnv: at the same speed it counts raw returns, gives
each step new arrays, and says which environment failed at which step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from tidemill.envs.action_mask import ActionMasks
from tidemill.envs.actions import action_adapter, as_batch
from tidemill.envs.checks import BOOLS, FAILURES, as_float32, failed, fault, is_flag, place
from tidemill.envs.episode_counter import EpisodeCounter
from tidemill.envs.interface import VectorStep
from tidemill.envs.observations import observation_format
from tidemill.envs.pictures import as_picture
from tidemill.errors import EnvFailed, FatalError, InvalidArgument, described
from tidemill.observation_parts import check_options, stored
from tidemill.types import EnvSpec

GymnasiumEnv = gymnasium.Env[Any, Any]

PICTURE_MODES = ("rgb_array", "rgb_array_list")
"""Render modes of gymnasium in which `render` returns pictures."""

_Outcome = tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]
"""Observation, raw reward, terminated and truncated of all environments."""


class GymnasiumVectorEnv:
    """`VectorEnv` over environments that one factory makes."""

    def __init__(
        self,
        make_one: Callable[[], GymnasiumEnv],
        num_envs: int,
        *,
        action_mask: str = "",
        joint_actions: bool = False,
        observation_stack: int = 1,
        tolerates: bool = False,
    ) -> None:
        """Make the environments.

        Args:
            make_one: Makes one.
            num_envs: N.
            action_mask: Where their masks are, as `env.action_mask` says it; nothing without them.
            joint_actions: Whether every combination of several choices is one discrete action.
            observation_stack: Newest observations the network sees at once; only reported in the spec.
            tolerates: Whether `step` lists in `failures` what fails, and steps the rest; otherwise it raises.

        Raises:
            ConfigError: The observation or action space is not supported.
        """
        self._make_one, self._tolerates = make_one, tolerates
        self.failures: list[EnvFailed] = []
        """Of the last step; each of these environments is left alone until `restart`."""
        self._down: set[int] = set()
        self._envs = [make_one() for _ in range(num_envs)]
        space = self._envs[0].observation_space
        self._format = observation_format(space)
        self._dtype = np.dtype(self._format.dtype)
        self._actions = action_adapter(self._envs[0].action_space, joint=joint_actions)
        self.spec = EnvSpec(
            self._format.shape,
            self._format.dtype,
            observation_stack,
            num_actions=self._actions.num_actions,
            action_shape=self._actions.shape,
            masks_actions=bool(action_mask),
            action_sizes=self._actions.sizes,
            observation_parts=self._format.parts,
            observation_spaces=self._format.part_spaces,
        )
        """Shapes and dtypes of one environment."""
        self._masks = ActionMasks(action_mask, num_envs, self.spec.action_options) if action_mask else None
        self._infos: list[Mapping[str, Any]] = [{}] * num_envs
        self._action_shape = (num_envs, *self._actions.shape)
        self._ended = np.zeros(num_envs, np.bool_)
        self._newest = self._new_observation()
        self._counter = EpisodeCounter(num_envs)

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
        self._down, self.failures = set(), []
        self._counter.clear()
        observation = self._new_observation()
        for index in range(self.num_envs):
            observation[index] = self._first_observation(index, seed + index)
        self._format.check_finite(observation, self._counter.returns, self._counter.lengths)
        if self._masks is not None:
            self._masks.read(self._infos, self._ended, self._ended, self._counter.lengths)
        self._newest = observation
        return observation

    def restart(self, index: int, seed: int) -> NDArray[Any]:
        """Reset an environment that has failed; return its first observation, [*observation_shape].

        Raises:
            EnvFailed: It failed again.
        """
        observation, ended = self._newest.copy(), self._ended.copy()
        ended[index] = False
        try:
            observation[index] = row = self._first_observation(index, seed)
            self._format.check_finite(observation, self._counter.returns, self._counter.lengths)
            if self._masks is not None:
                self._masks.read(self._infos, ended, ended, self._counter.lengths)
        except EnvFailed:
            self._infos[index] = {}
            raise
        self._ended, self._newest = ended, observation
        self._down.discard(index)
        return row

    def remake(self, index: int) -> None:
        """Close an environment that has failed, whatever that raises, and make it once more; raises EnvFailed."""
        with contextlib.suppress(*FAILURES):  # user code, and broken
            self._envs[index].close()
        try:
            self._envs[index] = self._make_one()
        except FAILURES as error:
            reason = " ".join(described(error).split())
            said = f"environment {index} could not be made: {reason}"
            raise failed(said, error, index=index) from error

    def step(self, action: NDArray[Any]) -> VectorStep:
        """Act in every environment, or reset it if it had ended; see `VectorEnv.step`."""
        action = as_batch(action, self._action_shape)
        is_reset_step = self._ended
        converted = self._actions.convert(action)
        commands: list[Any] = list(converted)
        if converted.ndim == 1 and converted.dtype.kind == "f":  # a Box without an axis holds arrays, not scalars
            commands = list(map(np.asarray, commands))
        if self._masks is not None:
            self._masks.check_legal(action, is_reset_step, self._counter.lengths)
        self.failures = []
        observation, raw_reward, terminated, truncated = self._step_all(commands, is_reset_step)
        self._counter.add(raw_reward, is_reset_step)
        reward, lengths = as_float32(raw_reward), self._counter.lengths
        self._check(lambda: self._format.check_finite(observation, reward, lengths), observation, reward)
        ended = terminated | truncated
        if self._masks is not None:
            read, infos = self._masks.read, self._infos
            self._check(lambda: read(infos, self._or_down(terminated), truncated, lengths), observation, reward)
        is_first, is_cut = is_reset_step.copy(), None
        if self._down:
            down, now = list(self._down), [error.index for error in self.failures if error.index is not None]
            is_cut = np.zeros(self.num_envs, np.bool_)
            is_cut[now] = ~is_reset_step[now]
            is_reset_step = self._or_down(is_reset_step)
            for column in (is_first, terminated, truncated, ended):
                column[down] = False
            self._counter.forget(down)
        self._ended, self._newest = self._or_down(ended), observation
        return VectorStep(
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            is_first=is_first,
            is_reset_step=is_reset_step,
            episodes=self._counter.finish(ended, terminated),
            is_cut=is_cut,
        )

    def _check(self, check: Callable[[], object], observation: NDArray[Any], reward: NDArray[np.float32]) -> None:
        """Make a check of all environments until those that fail it are put aside; raises if they are not tolerated."""
        while True:
            try:
                check()
            except EnvFailed as error:
                self._put_aside(error)
                observation[error.index], reward[error.index] = self._newest[error.index], 0
            else:
                return

    def _put_aside(self, error: EnvFailed) -> None:
        if not self._tolerates or error.index is None:
            raise error
        self.failures.append(error)
        self._down.add(error.index)
        self._infos[error.index] = {}

    def _or_down(self, which: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask with those that are down as well, [N]."""
        if not self._down:
            return which
        with_down = which.copy()
        with_down[list(self._down)] = True
        return with_down

    def render(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        """Return a picture of one environment; see `VectorEnv.render`."""
        env = self._envs[env_index]
        if env.render_mode not in PICTURE_MODES:
            return None
        try:
            picture: Any = env.render()
        except FAILURES as error:
            at = place(env_index, self._counter.lengths[env_index])
            raise FatalError(f"{at} cannot be rendered, {described(error)}") from error
        return as_picture(picture)

    def close(self) -> None:
        """Close every environment; closing twice does nothing."""
        for env in self._envs:
            with contextlib.suppress(*FAILURES if self._tolerates else ()):
                env.close()

    def _new_observation(self) -> NDArray[Any]:
        return np.empty((self.num_envs, *self._format.shape), self._format.dtype)

    def _first_observation(self, index: int, seed: int) -> NDArray[Any]:
        """Reset one environment; return its observation as it is stored."""
        try:
            returned = self._envs[index].reset(seed=seed)
        except FAILURES as error:
            raise failed(f"{place(index, 0)} {fault(None, reset=True, error=error)}", error, index=index) from error
        if wrong := fault(returned, reset=True):
            raise EnvFailed(f"{place(index, 0)} {wrong}", index=index)
        observation, self._infos[index] = returned
        try:
            return self._row(observation)
        except FAILURES as error:
            raise self._failure(index, error, returned, reset=True) from error

    def _row(self, observation: Any) -> NDArray[Any]:  # noqa: ANN401 - the user's
        """Return an observation as it is stored; raises InvalidArgument if it is not as its space says."""
        if self._format.parts:
            return self._format.pack(observation)
        row = np.asarray(observation)
        if row.shape != self._format.shape:  # NumPy would repeat a smaller one
            allowed = f"allowed by its observation space: {self._format.shape}"
            raise InvalidArgument(f"observation of shape {row.shape}, {allowed}")
        row = stored(row, self._dtype)
        if self.spec.observation_spaces:
            check_options(self.spec.observation_spaces, {"": row})
        return row

    def _step_all(self, commands: Sequence[Any], is_reset_step: NDArray[np.bool_]) -> _Outcome:
        """Step or reset each environment; plain lists, because writing single elements of arrays is slow."""
        observation = self._new_observation()
        reward = [0.0] * self.num_envs
        terminated, truncated = [False] * self.num_envs, [False] * self.num_envs
        returned: Any = None
        for index, (env, reset) in enumerate(zip(self._envs, is_reset_step.tolist(), strict=True)):
            if self._down and index in self._down:
                observation[index] = self._newest[index]
                continue
            returned = None
            try:
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
                failure = self._failure(index, error, returned, reset=reset)
                if not self._tolerates:
                    raise failure from error
                self._put_aside(failure)
                observation[index], reward[index] = self._newest[index], 0.0
                terminated[index] = truncated[index] = False
        ends = np.array((terminated, truncated), np.bool_)
        return observation, np.array(reward, np.float64), ends[0], ends[1]

    def _failure(self, index: int, error: BaseException, returned: Any, *, reset: bool) -> EnvFailed:  # noqa: ANN401
        at = place(index, self._counter.lengths[index] + (not reset))
        article = "a" if str(error).startswith("part") else "an"  # before "observation"
        found = f"returned {article} {error}" if isinstance(error, InvalidArgument) else ""
        wrong = found or fault(returned, reset=reset, error=error)
        return failed(f"{at} {wrong}", error, index=index, returned=returned)
