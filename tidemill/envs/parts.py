"""Environments of a batch that are stepped together, in this process: what `SurvivingEnv` restarts.

A part has one or more units, each of some consecutive environments that are restarted together. A step is begun in
every part before any is waited for.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.envs.checks import FAILURES
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.interface import VectorEnv, VectorStep, action_mask_of
from tidemill.errors import ConfigError, EnvFailed, FatalError, InvalidArgument
from tidemill.types import EnvSpec

Failure = tuple[int, EnvFailed]
"""The unit that failed, and how."""


class Part(Protocol):
    """Some environments of a batch."""

    @property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of one environment."""

    @property
    def num_envs(self) -> int:
        """Environments, in all units."""

    @property
    def units(self) -> int:
        """Units that are restarted one by one."""

    @property
    def action_mask(self) -> NDArray[np.bool_] | None:
        """Which actions are legal at the newest observations, [num_envs, A]; None if all are, always."""

    def begin_reset(self, seed: int, parts: int, /) -> None:
        """Begin a reset with this seed, one of so many parts, if they can reset together; raises EnvFailed."""

    def reset(self, seed: int) -> Array:
        """Reset every environment, those that are down included, or take the reset that was begun; raises EnvFailed."""

    def begin(self, action: Array) -> None:
        """Begin a step of the units that are up, [num_envs, ...]."""

    def finish(self) -> tuple[VectorStep, list[Failure]]:
        """Return the step's result, and what failed; that is down from now on, and its rows are as they were."""

    def restart(self, unit: int, seed: int, /) -> None:
        """Begin to restart a unit that is down."""

    def restarted(self, unit: int, /) -> Array | None:
        """Return the first observations of a unit that is up again; None if it is not yet. Raises EnvFailed."""

    def render(self, env_index: int) -> NDArray[np.uint8] | None:
        """Return a picture of one environment."""

    def begin_close(self) -> None:
        """Begin to free the environments, if others can be freed at the same time."""

    def close(self) -> None:
        """Free the environments."""


class GymnasiumPart:
    """Environments of gymnasium in this thread: each is a unit, and the others wait while it is made again."""

    def __init__(self, env: GymnasiumVectorEnv, *, keeps: bool = False) -> None:
        """Take an environment made with `tolerates`; with `keeps`, one that has failed is reset, not made again."""
        self._env, self._keeps = env, keeps
        self._unusable: set[int] = set()  # those whose reset has failed as well
        self._action: Array = np.zeros(0)
        self._seeds: dict[int, int] = {}
        self._broken: int | None = None  # what a reset of all has failed at
        self.spec, self.num_envs, self.units = env.spec, env.num_envs, env.num_envs

    @property
    def action_mask(self) -> NDArray[np.bool_] | None:
        """Which actions are legal; see `Part`."""
        return action_mask_of(self._env)

    def begin_reset(self, _: int, __: int) -> None:
        """Do nothing."""

    def reset(self, seed: int) -> Array:
        """Reset every environment; the one that failed before is made once more."""
        if self._broken is not None:
            self._env.remake(self._broken)
        self._broken = None
        try:
            return self._env.reset(seed)
        except EnvFailed as error:
            self._broken = error.index
            raise

    def begin(self, action: Array) -> None:
        """Keep the action."""
        self._action = action

    def finish(self) -> tuple[VectorStep, list[Failure]]:
        """Step, one environment after another."""
        step = self._env.step(self._action)
        return step, [(error.index, error) for error in self._env.failures if error.index is not None]

    def restart(self, unit: int, seed: int) -> None:
        """Keep the seed."""
        self._seeds[unit] = seed

    def restarted(self, unit: int) -> Array | None:
        """Make and reset the environment, or only reset it."""
        if not self._keeps or unit in self._unusable:
            self._env.remake(unit)
        self._unusable.add(unit)
        observation = self._env.restart(unit, self._seeds[unit])[None]
        self._unusable.discard(unit)
        return observation

    def render(self, env_index: int) -> NDArray[np.uint8] | None:
        """Return a picture."""
        return self._env.render(env_index)

    def begin_close(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


class BatchPart:
    """A batch that its own code steps, in this thread: one unit, so that a failure cuts all of its episodes."""

    units = 1

    def __init__(self, make: Callable[[], VectorEnv], *, keeps: bool = False) -> None:
        """Make the batch; with `keeps`, one that has failed is reset, not made again."""
        self._make, self._env = make, make()
        self._keeps, self._is_usable = keeps, True  # until a reset fails
        self._action: Array = np.zeros(0)
        self._seed, self._is_down = 0, False
        self._ended = np.zeros(self._env.num_envs, np.bool_)
        self._newest: Array = np.zeros(0)
        self.spec, self.num_envs = self._env.spec, self._env.num_envs

    @property
    def action_mask(self) -> NDArray[np.bool_] | None:
        """Which actions are legal; see `Part`."""
        return action_mask_of(self._env)

    def begin_reset(self, _: int, __: int) -> None:
        """Do nothing."""

    def reset(self, seed: int) -> Array:
        """Reset the batch; one that had failed is made once more."""
        if self._is_down:
            self.restart(0, seed)
            return self.restarted(0)
        try:
            return self._reset(seed)
        except EnvFailed:
            self._is_down = True
            raise

    def begin(self, action: Array) -> None:
        """Keep the action."""
        self._action = action

    def finish(self) -> tuple[VectorStep, list[Failure]]:
        """Step the batch."""
        if self._is_down:
            return down_step(self._newest), []
        try:
            step = self._env.step(self._action)
        except InvalidArgument:
            raise  # the action is wrong, not the environment
        except FAILURES as error:
            self._is_down = True
            return down_step(self._newest, is_cut=~self._ended), [(0, as_failure(error))]
        self._newest, self._ended = step.observation, will_reset(step)
        return step, []

    def restart(self, _: int, seed: int) -> None:
        """Keep the seed."""
        self._seed = seed

    def restarted(self, _: int) -> Array:
        """Make the batch once more and reset it, or only reset it."""
        if not self._keeps or not self._is_usable:
            with contextlib.suppress(*FAILURES):  # user code, and broken
                self._env.close()
            try:
                self._env = self._make()
            except FAILURES as error:
                raise as_failure(error) from error
        observation = self._reset(self._seed)
        self._is_down = False
        return observation

    def render(self, env_index: int) -> NDArray[np.uint8] | None:
        """Return a picture."""
        return self._env.render(env_index)

    def begin_close(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close the batch; what that raises does not hide a failure, nor make an error of a stop."""
        with contextlib.suppress(*FAILURES):  # user code
            self._env.close()

    def _reset(self, seed: int) -> Array:
        self._is_usable = False
        try:
            self._newest = self._env.reset(seed)
        except FAILURES as error:
            raise as_failure(error) from error
        self._is_usable = True
        self._ended = np.zeros(self.num_envs, np.bool_)
        return self._newest


def as_failure(error: BaseException) -> EnvFailed:
    """Convert an exception of user code to the failure of an environment."""
    if isinstance(error, EnvFailed):
        return error
    text = " ".join(str(error).split())
    raised = f"raised {type(error).__name__}: {text}" if text else f"raised {type(error).__name__} without a message"
    said = text if isinstance(error, FatalError | ConfigError) else raised
    return EnvFailed(said, kind="raised", trace="".join(traceback.format_exception(error)))


def down_step(newest: Array, is_cut: NDArray[np.bool_] | None = None) -> VectorStep:
    """Return a step of environments that are all down, whose newest observations were [N, ...]."""
    terminated, truncated, is_first = np.zeros((3, len(newest)), np.bool_)
    return VectorStep(
        observation=newest.copy(),
        reward=np.zeros(len(newest), np.float32),
        terminated=terminated,
        truncated=truncated,
        is_first=is_first,
        is_reset_step=np.ones(len(newest), np.bool_),
        is_cut=is_cut,
    )


def will_reset(step: VectorStep) -> NDArray[np.bool_]:
    """Return where the next step is one that resets, [N]: a lost life ends an episode and resets nothing."""
    return (step.terminated | step.truncated) & ~step.is_first
