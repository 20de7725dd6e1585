"""Rewards of an environment with goals, for stored steps whose goal is replaced.

The conventions are those of gymnasium-robotics: observations are a Dict of `observation`, `achieved_goal` and
`desired_goal`, and the environment has `compute_reward(achieved_goal, desired_goal, info)`, for batches of goals too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.envs.make import make_one
from tidemill.envs.observations import observation_format
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.observation_parts import unpack

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"

_TRIED_STEPS = 20


def goal_rewards(settings: EnvSettings) -> EnvGoalRewards:
    """Return how an environment rewards goals; makes one environment, and plays some random steps to try it.

    Raises:
        ConfigError: It has no goals, its rewards cannot be computed from goals alone and in batches, or those computed
            are not those of its steps.
    """
    try:
        env = make_one(settings, training=True, render=False)
    except ConfigError as error:
        if not settings.spaces:
            raise
        raise ConfigError(
            f"{str(error).partition(';')[0]}; table.hindsight needs the compute_reward of an environment in Python: "
            "let env.id name one, also with env.spaces, or set table.hindsight to 0"
        ) from error
    goals = EnvGoalRewards(env, f"table.hindsight is set, but env.id {settings.id!r}")
    if settings.action_mask:  # of which a random action knows nothing
        return goals
    try:
        goals.check(env)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{goals.subject} raised {type(error).__name__} for a batch of goals: {error}") from error
    return goals


class EnvGoalRewards:
    """An environment's `compute_reward`, and `compute_terminated` if it has one, of batches of stored goals."""

    def __init__(self, env: gymnasium.Env[Any, Any], subject: str) -> None:
        """Find the functions.

        Args:
            env: Whose they are, or those of what it wraps; never stepped here.
            subject: What messages begin with.

        Raises:
            ConfigError: There are no such goals, or no `compute_reward`.
        """
        self.subject = subject
        self._space = _goal_space(env.observation_space, subject)
        self._format = observation_format(env.observation_space)
        reward = _function(env, "compute_reward")
        if reward is None:
            raise ConfigError(f"{subject} has no compute_reward(achieved_goal, desired_goal, info)")
        self._reward = reward
        self._terminated = _function(env, "compute_terminated")

    def reward(self, achieved: Array, desired: Array) -> NDArray[np.float32]:
        """Return the rewards of steps, float32 [B], by the goals as they are stored, [B, ...] each.

        Raises:
            ConfigError: The environment wants the step's info, or does not return one reward for each step.
        """
        computed = np.asarray(self._reward(self._as_given(achieved), self._as_given(desired), _NoInfo(self.subject)))
        if computed.shape != (len(achieved),):
            raise ConfigError(
                f"{self.subject} has a compute_reward that returns shape {computed.shape} for {len(achieved)} goals, "
                f"must be [{len(achieved)}]: it must take batches"
            )
        return computed.astype(np.float32)

    def terminated(self, achieved: Array, desired: Array) -> NDArray[np.bool_] | None:
        """Return a mask of the steps that end their episode, bool [B]; None without a `compute_terminated`."""
        if self._terminated is None:
            return None
        goals = self._as_given(achieved), self._as_given(desired)
        computed = np.asarray(self._terminated(*goals, _NoInfo(self.subject)))
        if computed.shape != (len(achieved),) and (computed.ndim or computed):  # a plain False is of environments
            raise ConfigError(  # that no goal ends
                f"{self.subject} has a compute_terminated that returns {computed} for {len(achieved)} goals, must be "
                f"of shape [{len(achieved)}]: it must take batches"
            )
        return np.broadcast_to(computed.astype(np.bool_), len(achieved))

    def check(self, env: gymnasium.Env[Any, Any]) -> None:
        """Play random steps and compare.

        Raises:
            ConfigError: What is computed from goals is not what the environment returned; or as `reward`.
        """
        env.action_space.seed(0)
        achieved, _ = self._stored(env.reset(seed=0)[0])
        both = np.stack([achieved, achieved])
        self.reward(both, both)
        self.terminated(both, both)
        for _ in range(_TRIED_STEPS):
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            goals = [goal[None] for goal in self._stored(observation)]
            self._compare("reward", float(reward), float(self.reward(*goals)[0]))
            if (computed := self.terminated(*goals)) is not None:
                self._compare("terminated", bool(terminated), bool(computed[0]))
            if terminated or truncated:
                env.reset()

    def _compare(self, name: str, given: float, computed: float) -> None:
        if not np.isclose(given, computed, rtol=1e-4, atol=1e-6):
            raise ConfigError(
                f"{self.subject} returned {name} {given} where its compute_{name} of the same goals is {computed}: "
                "it must depend on the goals alone, and no wrapper may change it"
            )

    def _stored(self, observation: Any) -> tuple[Array, Array]:  # noqa: ANN401 - a nest of the user's
        parts = unpack(self._format.parts, self._format.pack(observation))
        return parts[ACHIEVED], parts[DESIRED]

    def _as_given(self, goal: Array) -> Array:
        """Return stored goals, [B, ...], as the environment gave them."""
        return goal.reshape(len(goal), *(self._space.shape or ())).astype(self._space.dtype)


class _NoInfo(Mapping[str, Any]):
    """The info of a stored step: none, and whoever looks at it is told."""

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def __getitem__(self, key: str) -> NoReturn:
        self._refuse()

    def __iter__(self) -> Iterator[str]:
        self._refuse()

    def __len__(self) -> int:
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"{self._subject} looks at the info of a step to compute its reward or end, and infos are not stored: "
            "let it be computed from the goals alone"
        )


def _goal_space(space: gymnasium.Space[Any], subject: str) -> gymnasium.Space[Any]:
    """Return the space of goals."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    achieved, desired = parts.get(ACHIEVED), parts.get(DESIRED)
    is_one = isinstance(achieved, spaces.Box | spaces.MultiBinary) and type(achieved) is type(desired)
    if achieved is None or desired is None or not is_one or achieved.shape != desired.shape:
        named = [f"{name}: {type(part).__name__}{list(part.shape or ())}" for name, part in parts.items()]
        shown = ", ".join(named) or str(list(space.shape or ()))
        raise ConfigError(
            f"{subject} observes a {type(space).__name__} ({shown}): must be a Dict with {ACHIEVED} and {DESIRED}, "
            "both Box or both MultiBinary and of one shape, and env.flatten must be off"
        )
    return achieved


def _function(env: gymnasium.Env[Any, Any], name: str) -> Callable[..., Any] | None:
    """Return a method of an environment or of what it wraps, None if there is none."""
    try:
        found = env.get_wrapper_attr(name)
    except AttributeError:
        return None
    return found if callable(found) else None
