"""Input of a policy at each step, and its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tidemill.arrays import Array
from tidemill.errors import InvalidArgument
from tidemill.observation_parts import observation_columns
from tidemill.types import ACTION_MASK, EnvSpec, Signature

_WORDS = {2: "<u2", 4: "<u4", 8: "<u8"}
"""Types of as many bytes as a stack has frames; the first byte is the lowest."""


class FrameStack:
    """Keeps the last `stack` observations of each environment.

    At an episode's first observation every frame of that environment becomes this observation, the padding
    that `tidemill.rl.transitions.transitions` rebuilds in the learner.
    """

    def __init__(self, num_envs: int, stack: int, shape: tuple[int, ...], dtype: DTypeLike = np.uint8) -> None:
        """Make an empty stack; the first `push` must be of first observations only.

        Gray images of bytes lie in memory with the frames of a pixel side by side, channels last, as convolutions
        read them fastest; a pixel's frames are then one word, and a shift drops the oldest.
        """
        assert min(num_envs, stack) >= 1, f"num_envs {num_envs} and stack {stack} must be at least 1"
        self._stack = stack
        self._words: Array | None = None
        if stack in _WORDS and len(shape) == 2 and np.dtype(dtype) == np.uint8:
            self._words = np.zeros((num_envs, *shape), dtype=_WORDS[stack])
            channels_last = self._words.view(np.uint8).reshape(num_envs, *shape, stack)
            self._frames: Array = np.moveaxis(channels_last, -1, 1)
        else:
            self._frames = np.zeros((num_envs, stack, *shape), dtype=dtype)

    def restore(self, stacks: Array) -> Array:
        """Take whole stacks, [N, stack, *shape] or without a stack [N, *shape]; return what the policy sees."""
        if self._stack == 1:
            return stacks
        self._frames[:] = stacks
        return self._frames

    def push(self, observation: Array, is_first: NDArray[np.bool_]) -> Array:
        """Add one observation of each environment and return what the policy sees.

        Args:
            observation: [N, *shape].
            is_first: Whether it is the first of its episode, [N].

        Returns:
            The stacks, oldest first, [N, stack, *shape], or `observation` itself if `stack` is 1. The array
            is this object's own and changes at the next `push`; it need not be contiguous.
        """
        if self._stack == 1:
            return observation
        if self._words is not None:
            np.right_shift(self._words, 8, out=self._words)
        else:
            self._frames[:, :-1] = self._frames[:, 1:]
        self._frames[:, -1] = observation
        if is_first.any():
            self._frames[is_first] = observation[is_first][:, None]
        return self._frames


@dataclass(frozen=True)
class PolicyInput:
    """One step of N environments, as a policy perceives it.

    Attributes:
        observation: [N, *observation_shape], or the newest ones [N, frame_stack, *observation_shape], oldest first; of
            several parts their bytes, which `tidemill.observation_parts.unpack` takes apart.
        is_first: Whether it is the first of its episode, bool [N]: what a policy carries from one step to the next,
            such as a recurrent state or correlated noise, is reset there, and the last action and reward mean nothing.
        last_action: What the policy chose before this observation, [N, *action_shape].
        last_reward: The reward that came with this observation, float32 [N].
        recurrent_state: What the policy's last decision said it remembers, [N, M]; M is `Policy.recurrent_state_size`.
        action_mask: Whether each action is legal, bool [N, num_actions], at least one of each environment's; None if
            the environments have no masks.
        last_extras: `PolicyOutput.extras` of the last step, each [N, ...]; empty before the first.
    """

    observation: Array
    is_first: NDArray[np.bool_]
    last_action: Array
    last_reward: NDArray[np.float32]
    recurrent_state: NDArray[np.float32]
    action_mask: NDArray[np.bool_] | None = None
    last_extras: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return N."""
        return len(self.observation)


@dataclass(frozen=True)
class PolicyOutput:
    """Choices of a policy for one step of N environments.

    Attributes:
        action: int64 [N], or float32 [N, *action_shape] in [-1, 1]; what a Gaussian draws beyond that is clipped by the
            environment.
        priority_inputs: Columns, each [N, ...], that `Policy.initial_priority` wants back for this step.
        recurrent_state: The policy's state after this step, which its next input holds again, float32
            [N, recurrent_state_size]; None if that is 0.
        extras: Columns of the algorithm's own that are stored with this step, each [N, ...]: exactly those that
            `extra_columns` of its settings names. Not looked at in evaluation.
    """

    action: Array
    priority_inputs: dict[str, Array] = field(default_factory=dict)
    recurrent_state: NDArray[np.float32] | None = None
    extras: dict[str, Array] = field(default_factory=dict)


def kept(output: PolicyOutput, stack: Array) -> PolicyOutput:
    """Return an output with copies of what it shares with the stack that was seen, which the next step writes over."""

    def own(arrays: Mapping[str, Array]) -> dict[str, Array]:
        shared = {name for name, each in arrays.items() if np.may_share_memory(np.asarray(each), stack)}
        return {name: np.array(each) if name in shared else each for name, each in arrays.items()}

    return replace(output, priority_inputs=own(output.priority_inputs), extras=own(output.extras))


def check_extras(extras: Mapping[str, Array], columns: Signature, num_envs: int) -> None:
    """Raise InvalidArgument unless a policy returned the extra columns that its settings name.

    Args:
        extras: `PolicyOutput.extras` of one step.
        columns: What `extra_columns` of its settings returned.
        num_envs: N, the environments it acted in.
    """
    for column in columns:
        value = extras.get(column.name)
        shape = (num_envs, *column.shape)
        if value is None or value.shape != shape or value.dtype != column.dtype:
            found = "none" if value is None else f"{value.dtype} {value.shape}"
            raise InvalidArgument(
                f"extras of a policy's output hold {found} as column {column.name!r}, must be {column.dtype} {shape}"
            )
    if len(extras) > len(columns):
        unknown = sorted(extras.keys() - {column.name for column in columns})
        raise InvalidArgument(f"extras of a policy's output hold {unknown[0]!r}, which `extra_columns` does not name")


def step_columns(
    output: PolicyOutput,
    observation: Array,
    is_first: NDArray[np.bool_],
    action_mask: NDArray[np.bool_] | None,
    spec: EnvSpec,
    *,
    reward: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
) -> dict[str, Array]:
    """Return the columns that one step of N environments is stored as, each [N, ...].

    Args:
        output: What the policy chose.
        observation: What it saw, the newest one alone, [N, *observation_shape].
        is_first: Whether that is the first of its episode, [N].
        action_mask: Whether each action was legal, [N, num_actions]; None without masks.
        spec: Shapes of one environment.
        reward: What the action brought, [N].
        terminated: Whether it ended the episode, [N].
        truncated: Whether the episode was cut behind it, [N].
    """
    columns = {
        **output.extras,
        **observation_columns(spec.observation_parts, observation),
        "action": output.action,
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "is_first": is_first,
    }
    if action_mask is not None:
        columns[ACTION_MASK] = action_mask
    return columns


def join(inputs: Sequence[PolicyInput]) -> PolicyInput:
    """Return one input of the environments of several."""
    masks = [policy_input.action_mask for policy_input in inputs if policy_input.action_mask is not None]
    return PolicyInput(
        np.concatenate([policy_input.observation for policy_input in inputs]),
        np.concatenate([policy_input.is_first for policy_input in inputs]),
        np.concatenate([policy_input.last_action for policy_input in inputs]),
        np.concatenate([policy_input.last_reward for policy_input in inputs]),
        np.concatenate([policy_input.recurrent_state for policy_input in inputs]),
        np.concatenate(masks) if masks else None,
    )


class PolicyInputBuilder:
    """Makes the inputs of N environments: stacks frames, and keeps the policy's last output."""

    def __init__(self, num_envs: int, spec: EnvSpec, recurrent_state_size: int) -> None:
        """Know nothing yet; the first `build` must be of first observations only.

        Args:
            num_envs: N.
            spec: Shapes of one environment.
            recurrent_state_size: `Policy.recurrent_state_size`.
        """
        self._stack = FrameStack(num_envs, spec.frame_stack, spec.observation_shape, spec.observation_dtype)
        self._action: Array = np.zeros((num_envs, *spec.action_shape), dtype=spec.action_dtype)
        self._recurrent_state = np.zeros((num_envs, recurrent_state_size), dtype=np.float32)
        self._extras: Mapping[str, Array] = {}

    def build(
        self,
        observation: Array,
        is_first: NDArray[np.bool_],
        last_reward: NDArray[np.float32] | None = None,
        action_mask: NDArray[np.bool_] | None = None,
    ) -> PolicyInput:
        """Return the policy's input for the newest observation of each environment.

        Args:
            observation: [N, *observation_shape].
            is_first: Whether it is the first of its episode, [N].
            last_reward: The reward that came with it, [N]; None: none has come yet.
            action_mask: Whether each action is legal, [N, num_actions]; None without masks.

        Returns:
            The input; its stack is this object's own and changes at the next call.
        """
        if last_reward is None:
            last_reward = np.zeros(len(is_first), dtype=np.float32)
        stacks = self._stack.push(observation, is_first)
        return PolicyInput(
            stacks, is_first, self._action, last_reward, self._recurrent_state, action_mask, self._extras
        )

    def record(self, output: PolicyOutput, env: slice = slice(None)) -> None:
        """Keep what the policy chose, for the next input.

        Args:
            output: What it chose, for these environments or for more.
            env: Which of its rows are these environments.
        """
        self._action = output.action[env]
        self._extras = {name: column[env] for name, column in output.extras.items()}
        if output.recurrent_state is not None:
            self._recurrent_state = output.recurrent_state[env]
