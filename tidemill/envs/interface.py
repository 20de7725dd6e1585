"""Interface through which actors and evaluators step a batch of environments.

A stream is the rows of one environment. Row t pairs the observation that came with one step with what
the next step brought: (observation_t, action_t, reward, terminated, truncated, is_first of observation_t).
Every implementation keeps these promises, on which windows and stacks are built:

- After a truncated row comes exactly one *final observation step*: its observation is the last of the episode, its
  action was ignored, its reward is 0, and the step that completed it has `is_reset_step`. Then an is_first row.
- After a terminated row comes either such a final observation step or directly an is_first row. The latter is a lost
  life that ends a training episode while the game continues: nothing was reset.
- `is_reset_step` occurs nowhere else, and the observation of a step with `is_reset_step` is_first.

An environment that fails and is restarted (`tidemill.envs.surviving_env`) keeps them with the help of whoever writes
the rows: `is_cut` says that the row before this one was the episode's last, and `is_absent` that there is no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tidemill.types import EnvSpec


@dataclass(frozen=True)
class EpisodeSummary:
    """One real episode that ended: for Atari a full game, all its lives included.

    Attributes:
        env_index: Which environment of the batch played it.
        episode_return: Sum of its rewards as the environment gave them, never clipped.
        length: Agent decisions.
        terminated: Whether it ended by itself; False if it was only cut at a limit.
    """

    env_index: int
    episode_return: float
    length: int
    terminated: bool


@dataclass(frozen=True)
class VectorStep:
    """Result of one step of all N environments. The arrays belong to the caller and are never reused.

    Attributes:
        observation: What came after the action, [N, *observation_shape]; for Atari one newest frame.
        reward: As trained on (Atari: clipped if asked for), float32 [N]; 0 where `is_reset_step`.
        terminated: The episode ended and has no value beyond this step, bool [N].
        truncated: The episode was cut at a limit, its value continues beyond, bool [N].
        is_first: `observation` is the first of an episode, bool [N].
        is_reset_step: This step only reset the environment, the action was ignored, bool [N].
        episodes: Real episodes that ended in this step, in the order of `env_index`. Scores and training returns are
            computed from these alone.
        is_cut: The environment failed in this step, bool [N], and `is_reset_step` is true: what the action did is not
            known. The step before it was the last of the episode and is to be marked as truncated. None: nowhere.
        is_absent: The environment was not there in this step, because it is being restarted, bool [N]:
            `is_reset_step` is true, and `observation` has no meaning unless `is_first`. None: nowhere.
    """

    observation: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_first: NDArray[np.bool_]
    is_reset_step: NDArray[np.bool_]
    episodes: tuple[EpisodeSummary, ...] = ()
    is_cut: NDArray[np.bool_] | None = None
    is_absent: NDArray[np.bool_] | None = None


class VectorEnv(Protocol):
    """N environments stepped together; one that ended is reset by the next step.

    Example:
        >>> import numpy as np
        >>> import tidemill
        >>> env = tidemill.make_env(tidemill.EnvSettings("CartPole-v1"), 3, training=True)
        >>> env.reset(seed=0).shape
        (3, 4)
        >>> step = env.step(np.array([0, 1, 1]))
        >>> step.reward
        array([1., 1., 1.], dtype=float32)
        >>> env.close()
    """

    @property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of one environment."""

    @property
    def num_envs(self) -> int:
        """N, the environments in the batch."""

    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every environment, environment i with seed + i.

        Returns:
            First observations, [N, *observation_shape]. The same seed and actions give the same steps.

        Raises:
            EnvFailed: An environment raised, or returned something its observation space does not allow.
        """

    def step(self, action: NDArray[Any]) -> VectorStep:
        """Act in every environment.

        Args:
            action: Discrete: integers [N] in 0 .. num_actions - 1. Continuous: [N, *action_shape]
                in [-1, 1], scaled to the bounds of the action space; values outside are clipped to them.

        Raises:
            InvalidArgument: The action batch has another shape, or discrete actions are not integers in their range.
            EnvFailed: An environment raised, or returned a non-finite observation or reward.
        """

    def render(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        """Return a picture of one environment, uint8 [H, W, 3].

        None if the environment has no pictures, or was made without `render=True`.
        """

    def close(self) -> None:
        """Free the environments. Closing twice does nothing."""


class MasksActions(VectorEnv, Protocol):
    """A `VectorEnv` with `spec.masks_actions`: it says which discrete actions are legal."""

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        """Whether each action is legal at the newest observation of each environment, [N, num_actions].

        At least one is, even at an episode's last observation, whose action is ignored: where the episode is truncated,
        the value of that observation is computed from its legal actions. The array is never written again.
        """


def action_mask_of(env: VectorEnv) -> NDArray[np.bool_] | None:
    """Return a mask of the actions that are legal now, bool [N, num_actions]; None if all always are."""
    return cast(MasksActions, env).action_mask if env.spec.masks_actions else None
