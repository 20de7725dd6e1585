"""What a policy knows when it acts: the newest observations, and what it did and got just before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemill.rl.frame_stacker import FrameStack
from tidemill.types import EnvSpec

if TYPE_CHECKING:
    from tidemill.rl.agents.interface import Decision

Array = NDArray[Any]


@dataclass(frozen=True)
class Percept:
    """One tick of N environments, as a policy perceives it.

    Attributes:
        observation: [N, *observation_shape], or the newest ones [N, frame_stack, *observation_shape], oldest first.
        is_first: Whether it is the first of its episode, bool [N]: what a policy carries from one tick to the next,
            such as a memory or correlated noise, starts anew there, and the last action and reward mean nothing.
        last_action: What the policy chose before this observation, [N, *action_shape].
        last_reward: The reward that came with this observation, float32 [N].
        memory: What the policy's last decision said it remembers, [N, M]; M is `Policy.memory_size`.
    """

    observation: Array
    is_first: NDArray[np.bool_]
    last_action: Array
    last_reward: NDArray[np.float32]
    memory: NDArray[np.float32]

    def __len__(self) -> int:
        """Return N."""
        return len(self.observation)


def join(percepts: Sequence[Percept]) -> Percept:
    """Return one percept of the environments of several."""
    return Percept(
        np.concatenate([percept.observation for percept in percepts]),
        np.concatenate([percept.is_first for percept in percepts]),
        np.concatenate([percept.last_action for percept in percepts]),
        np.concatenate([percept.last_reward for percept in percepts]),
        np.concatenate([percept.memory for percept in percepts]),
    )


class Perception:
    """Makes the percepts of N environments: stacks frames, and keeps what was decided at the tick before."""

    def __init__(self, num_envs: int, spec: EnvSpec, memory_size: int) -> None:
        """Know nothing yet; the first `perceive` must be of first observations only.

        Args:
            num_envs: N.
            spec: Shapes of one environment.
            memory_size: `Policy.memory_size`.
        """
        self._stack = FrameStack(num_envs, spec.frame_stack, spec.observation_shape, spec.observation_dtype)
        self._action: Array = np.zeros((num_envs, *spec.action_shape), dtype=spec.action_dtype)
        self._memory = np.zeros((num_envs, memory_size), dtype=np.float32)

    def perceive(
        self, observation: Array, is_first: NDArray[np.bool_], last_reward: NDArray[np.float32] | None = None
    ) -> Percept:
        """Return what the policy perceives of the newest observation of each environment.

        Args:
            observation: [N, *observation_shape].
            is_first: Whether it is the first of its episode, [N].
            last_reward: The reward that came with it, [N]; None: none has come yet.

        Returns:
            The percept; its stack is this object's own and changes at the next call.
        """
        if last_reward is None:
            last_reward = np.zeros(len(is_first), dtype=np.float32)
        return Percept(self._stack.push(observation, is_first), is_first, self._action, last_reward, self._memory)

    def decided(self, decision: Decision, env: slice = slice(None)) -> None:
        """Keep what the policy decided, for the next percept.

        Args:
            decision: What it decided, for these environments or for more.
            env: Which of its rows are these environments.
        """
        self._action = decision.action[env]
        if decision.memory is not None:
            self._memory = decision.memory[env]
