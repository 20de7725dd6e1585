"""Batches of environments that a user's simulator steps at once, behind the common interface.

An actor's stream needs a final observation step after an episode's end: a row with its last observation, whose action
is ignored, before the first observation of the next. gymnasium's vector environments end episodes in three ways:

- next step: the step after an end resets, and ignores its action. That is the stream itself.
- same step: the step that ends an episode resets already, and gives the last observation besides. The next step then
  acts in the new episode, which no row can hold: that episode is abandoned and restarted by a separate reset.
- disabled: whoever steps resets. What ended is reset so that it can be stepped, and again for the same reason.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from tidemill.envs.action_mask import ActionMasks, info_key
from tidemill.envs.actions import action_adapter, as_batch
from tidemill.envs.checks import FAILURES, as_float32, failed, fault
from tidemill.envs.episode_counter import EpisodeCounter
from tidemill.envs.interface import VectorEnv, VectorStep
from tidemill.envs.observations import observation_format
from tidemill.envs.pictures import as_picture
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, EnvFailed, InvalidArgument
from tidemill.observation_parts import check_options, stored
from tidemill.settings.user_code import user_object
from tidemill.types import EnvSpec

GymnasiumVectorEnv = gymnasium.vector.VectorEnv[Any, Any, Any]

_CLOSE_S = 2.0
_METHODS = ("reset", "step", "render", "close")
_FLATTEN = "wrap the batch in gymnasium.wrappers.vector.FlattenObservation, which makes vectors"


class BatchedEnv:
    """`VectorEnv` over a vector environment of gymnasium's interface."""

    def __init__(
        self,
        env: GymnasiumVectorEnv,
        name: str,
        *,
        action_mask: str = "",
        joint_actions: bool = False,
        observation_stack: int = 1,
    ) -> None:
        """Take the environment, which is closed with this.

        Args:
            env: The environment.
            name: What made it, for messages.
            action_mask: Where the masks are, as `env.action_mask` says it; nothing without them.
            joint_actions: Whether every combination of several choices is one discrete action.
            observation_stack: Newest observations the network sees at once; only reported in the spec.

        Raises:
            ConfigError: Its spaces are not supported, or it does not say how it resets.
        """
        self._env, self._name = env, name
        self._mode = _autoreset_mode(env, name)
        self._format = observation_format(env.single_observation_space, _FLATTEN)
        self._actions = action_adapter(env.single_action_space, joint=joint_actions)
        num_actions, action_shape = self._actions.num_actions, self._actions.shape
        self.spec = EnvSpec(
            self._format.shape,
            self._format.dtype,
            observation_stack,
            num_actions=num_actions,
            action_shape=action_shape,
            masks_actions=bool(action_mask),
            action_sizes=self._actions.sizes,
            observation_parts=self._format.parts,
            observation_spaces=self._format.part_spaces,
        )
        """Shapes and dtypes of one environment."""
        self._mask_key = info_key(action_mask)
        self._masks: ActionMasks | None = None
        if action_mask:
            last = "infos['final_info']" if self._mode is AutoresetMode.SAME_STEP else ""
            self._masks = ActionMasks(action_mask, env.num_envs, self.spec.action_options, last_info=last)
        self._infos: list[dict[str, Any]] = [{}] * env.num_envs
        self._next_infos: list[dict[str, Any]] = [{}] * env.num_envs
        """Infos of the episodes that ignored actions are played in."""
        self._ended = np.zeros(env.num_envs, np.bool_)
        self._counter = EpisodeCounter(env.num_envs)
        self._has_raised = False

    @property
    def num_envs(self) -> int:
        """Environments in the batch."""
        return self._env.num_envs

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        """Which actions are legal at the newest observations, [N, A]; see `MasksActions`."""
        assert self._masks is not None, f"{self._name} has no action masks"
        return self._masks.newest

    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every environment; how the seed is divided is up to the environment."""
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._counter.clear()
        first, infos = self._call(self._env.reset, seed=seed)
        observation = self._observations(first)
        self._format.check_finite(observation, self._counter.returns, self._counter.lengths)
        self._keep_masks(infos, ~self._ended)
        if self._masks is not None:
            self._masks.read(self._infos, self._ended, self._ended, self._counter.lengths)
        return observation

    def step(self, action: NDArray[Any]) -> VectorStep:
        """Act in every environment, or reset it if it had ended; see `VectorEnv.step`."""
        action = as_batch(action, (self.num_envs, *self._actions.shape))
        is_reset_step = self._ended
        command = self._actions.convert(action)
        if self._masks is not None:
            self._masks.check_legal(action, is_reset_step, self._counter.lengths)
        observation, raw_reward, terminated, truncated = self._step(command, is_reset_step)
        for column in (raw_reward, terminated, truncated):
            column[is_reset_step] = 0
        self._counter.add(raw_reward, is_reset_step)
        reward = as_float32(raw_reward)
        self._format.check_finite(observation, reward, self._counter.lengths)
        self._ended = terminated | truncated
        if self._masks is not None:
            self._masks.read(self._infos, terminated, truncated, self._counter.lengths)
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
        if self._env.render_mode != "rgb_array":
            return None
        pictures: Any = self._call(self._env.render)
        return None if pictures is None else as_picture(pictures[env_index])

    def close(self) -> None:
        """Close the environment; closing twice does nothing."""
        inner = self._env.unwrapped
        if self._has_raised and isinstance(inner, gymnasium.vector.AsyncVectorEnv):
            _end(inner)
        self._env.close()

    def _step(
        self, action: NDArray[Any], is_reset_step: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Step all environments and return observation, reward, terminated and truncated, arrays of the caller's."""
        again = bool(is_reset_step.any()) and self._mode is not AutoresetMode.NEXT_STEP
        if again and self._mode is AutoresetMode.DISABLED:
            self._reset(is_reset_step)  # it may not be stepped otherwise
            self._next_infos = list(self._infos)
        if again and self._masks is not None:  # chosen without the mask of the episode it is played in
            for index in np.flatnonzero(is_reset_step).tolist():
                legal = self._masks.first_legal(self._next_infos[index], index, self._counter.lengths)
                action[index] = self._actions.convert(legal.reshape(1, *self._actions.shape))[0]
        stepped, *results, infos = self._call(self._env.step, action)
        reward = self._column("reward", results[0], np.float64)
        terminated, truncated = (
            self._column(name, flags, np.bool_)
            for name, flags in zip(("terminated", "truncated"), results[1:], strict=True)
        )
        observation = self._observations(stepped)
        ended = (terminated | truncated) & ~is_reset_step
        self._keep_masks(infos, ~(is_reset_step if again else np.zeros_like(ended)))
        if again:
            fresh = self._reset(is_reset_step)
            others = ~is_reset_step
            if not np.array_equal(fresh[others], observation[others], equal_nan=True):  # `step` names a NaN
                raise EnvFailed(
                    f"{self._name} reset environments outside options['reset_mask'], or returned other observations "
                    "for them: respect the mask, or use AutoresetMode.NEXT_STEP"
                )
            observation = fresh
        if self._mode is AutoresetMode.SAME_STEP:
            self._put_final(observation, ended, infos)
        return observation, reward, terminated, truncated

    def _reset(self, mask: NDArray[np.bool_]) -> NDArray[Any]:
        """Reset the environments of a mask; return the newest observation of all."""
        observation, infos = self._call(self._env.reset, options={"reset_mask": mask.copy()})
        self._keep_masks(infos, mask)
        return self._observations(observation)

    def _keep_masks(self, infos: Mapping[str, Any], of: NDArray[np.bool_]) -> None:
        """Keep the action masks of some environments."""
        if self._masks is None:
            return
        for index in np.flatnonzero(of).tolist():
            self._infos[index] = self._mask_info(infos, index)

    def _mask_info(self, infos: Mapping[str, Any], index: int) -> dict[str, Any]:
        """Return an environment's info with nothing but its mask, which it has where the key after `_` says so."""
        masks, has = infos.get(self._mask_key), infos.get(f"_{self._mask_key}")
        is_given = masks is not None and (has is None or has[index])
        return {self._mask_key: masks[index]} if is_given and masks is not None else {}

    def _put_final(self, observation: NDArray[Any], ended: NDArray[np.bool_], infos: Mapping[str, Any]) -> None:
        """Write the last observations and masks of episodes over the first ones of those that follow."""
        if not ended.any():
            return
        if "final_obs" not in infos:
            raise EnvFailed(f"{self._name} ended an episode and reset it in the same step without infos['final_obs']")
        last = infos.get("final_info")
        for index in np.flatnonzero(ended).tolist():
            try:
                observation[index] = self._last_row(infos["final_obs"], index)
            except InvalidArgument as error:
                raise EnvFailed(f"{self._name} returned a last {error}") from error
            except (LookupError, TypeError) as error:
                raise EnvFailed(
                    f"{self._name} returned no infos['final_obs'] of environment {index}, allowed: a batch like its "
                    "observations, or a list or array of single ones"
                ) from error
            self._next_infos[index] = self._infos[index]
            self._infos[index] = self._mask_info(last, index) if isinstance(last, Mapping) else {}

    def _last_row(self, final: Any, index: int) -> NDArray[Any]:  # noqa: ANN401 - the user's
        """Return the last observation of an environment as it is stored; `final` holds those of all."""
        if not self._format.parts:
            return stored(final[index], self._format.dtype)
        is_tuple = isinstance(final, tuple) and isinstance(self._env.single_observation_space, gymnasium.spaces.Tuple)
        if is_tuple or isinstance(final, Mapping):
            return self._format.pack_row(final, index)
        return self._format.pack(final[index])

    def _observations(self, observation: Any) -> NDArray[Any]:  # noqa: ANN401 - the user's
        """Return a copy of observations in the format of the stream."""
        try:
            if self._format.parts:
                return self._format.pack_batch(observation, self.num_envs)
            copy = np.array(stored(observation, self._format.dtype))
            check_options(self.spec.observation_spaces, {"": copy})
        except InvalidArgument as error:
            raise EnvFailed(f"{self._name} returned an invalid observation: {error}") from error
        allowed = (self.num_envs, *self._format.shape)
        if copy.shape != allowed:
            raise EnvFailed(f"{self._name} returned observations of shape {copy.shape}, must be {allowed}")
        return copy

    def _column(self, name: str, values: Any, dtype: type[np.generic]) -> NDArray[Any]:  # noqa: ANN401 - the user's
        copy = np.array(values, dtype)
        if copy.shape != (self.num_envs,):
            raise EnvFailed(f"{self._name} returned {name} of shape {copy.shape}, must be ({self.num_envs},)")
        return copy

    def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - the user's
        at = f"{self._name}, at step {self._counter.lengths.max()} of its longest episode,"
        is_reset = method == self._env.reset
        try:
            returned = method(*arguments, **named)
        except BaseException as error:  # also an interrupt: whoever it came before may still owe an answer
            self._has_raised = True
            if not isinstance(error, FAILURES):
                raise
            raise failed(f"{at} {fault(None, reset=is_reset, error=error)}", error) from error
        if method != self._env.render and (wrong := fault(returned, reset=is_reset, batched=True)):
            raise EnvFailed(f"{at} {wrong}")
        return returned


def _end(env: gymnasium.vector.AsyncVectorEnv) -> None:
    """Close the processes of a batch of which one may be gone: `close` would wait for its answer.

    A SIGTERM, as gymnasium sends one then, would stop this process: what it has forked shares the pipe of its signals.
    """
    pipes = list(filter(None, env.parent_pipes))  # one that has told of an error has none
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.send(("close", None))
    until_s = time.monotonic() + _CLOSE_S
    for process in env.processes:
        process.join(max(0.0, until_s - time.monotonic()))
        process.kill()
        process.join()
    for pipe in pipes:
        pipe.close()
    env.closed = True


def purpose(function: Callable[..., Any], *, training: bool) -> dict[str, bool]:
    """Return `training` as an argument of what makes an environment, if it has a parameter of this name."""
    return {"training": training} if "training" in inspect.signature(function).parameters else {}


def make_batched(settings: EnvSettings, num_envs: int, *, training: bool, render: bool) -> VectorEnv:
    """Make the batch that `env.vector` names; see `tidemill.envs.make.make_env` for the arguments.

    What it names is called with `num_envs` and `env.kwargs`; if it has parameters of these names, also with
    `max_episode_steps` where that is limited, with `render_mode` where pictures are wanted, and with `training`.

    Raises:
        ConfigError: It is not there, refuses its arguments, or made no vector environment of that size.
    """
    name, limit = settings.vector, settings.max_steps(training=training)
    function = user_object("env.vector", name)
    if not callable(function):
        raise ConfigError(f"env.vector is {name!r}, which is not a function or class")
    parameters = inspect.signature(function).parameters
    arguments = purpose(function, training=training) | dict(settings.kwargs) | {"num_envs": num_envs}
    for setting in ("max_episode_steps", "max_evaluation_steps"):  # both, so that the trial of a run finds either
        if (steps := getattr(settings, setting)) and "max_episode_steps" not in parameters:
            raise ConfigError(f"env.{setting} is {steps}, but {name} has no parameter max_episode_steps to take it")
    if limit:
        arguments["max_episode_steps"] = limit
    if render and "render_mode" in parameters:
        arguments["render_mode"] = "rgb_array"
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"env.kwargs are {dict(settings.kwargs)}, which {name} refuses: {error}") from error
    return _checked(function(**arguments), settings, num_envs)


def _checked(env: Any, settings: EnvSettings, num_envs: int) -> VectorEnv:  # noqa: ANN401 - the user's
    name = settings.vector
    if isinstance(env, gymnasium.vector.VectorEnv):
        made: VectorEnv = BatchedEnv(
            env,
            name,
            action_mask=settings.action_mask,
            joint_actions=settings.joint_actions,
            observation_stack=settings.observation_stack,
        )
    elif isinstance(getattr(env, "spec", None), EnvSpec) and all(callable(getattr(env, m, None)) for m in _METHODS):
        made = env
        if settings.observation_stack not in (1, made.spec.frame_stack):
            found = f"env.observation_stack is {settings.observation_stack}, but the spec of {name}"
            raise ConfigError(f"{found} says frame_stack {made.spec.frame_stack}, which counts")
        if made.spec.masks_actions and not hasattr(env, "action_mask"):
            kind = type(env).__name__
            raise ConfigError(
                f"env.vector is {name!r}, which made {kind} with spec.masks_actions but no property action_mask"
            )
    else:
        kind = type(env).__name__
        raise ConfigError(
            f"env.vector is {name!r}, which made {kind}, allowed: a gymnasium.vector.VectorEnv or a tidemill.VectorEnv"
        )
    if made.num_envs != num_envs:
        raise ConfigError(f"env.vector is {name!r}, which made {made.num_envs} environments instead of {num_envs}")
    return made


def _autoreset_mode(env: GymnasiumVectorEnv, name: str) -> AutoresetMode:
    mode = (env.metadata or {}).get("autoreset_mode")
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError as error:
        allowed = ", ".join(str(each) for each in AutoresetMode)
        raise ConfigError(
            f"env.vector is {name!r}, whose metadata['autoreset_mode'] is {mode!r}, must say how it resets: {allowed}"
        ) from error
