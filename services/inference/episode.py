"""An episode that a client plays: its steps become inputs of the policy, and rows to be stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.errors import InvalidArgument
from tidemill.inference.wire import Answer
from tidemill.rl.agents.interface import SplitPolicy
from tidemill.rl.policy_io import PolicyInput, PolicyInputBuilder, PolicyOutput, check_extras, kept, step_columns
from tidemill.services.inference.evaluation import Evaluation
from tidemill.simulator.wire import SeenStep
from tidemill.types import EnvSpec, Signature


@dataclass(frozen=True)
class Row:
    """One step of a stream, as `ReplayWriter.append` takes it.

    Attributes:
        columns: What is stored, each without a leading dimension.
        is_decision: False for an episode's last observation.
        beside: What initial priorities are computed from.
        payload: The recurrent state that the policy acted with; None without one.
        params_version: Of the parameters that it acted with.
    """

    columns: Mapping[str, Array]
    is_decision: bool
    beside: Mapping[str, Array]
    payload: NDArray[np.float32] | None
    params_version: int


class Acted(NamedTuple):
    """An observation and what was chosen at it."""

    seen: SeenStep
    policy_input: PolicyInput
    output: PolicyOutput
    params_version: int


def _ignored(before: Acted, seen: SeenStep) -> Acted:
    """Return the decision before once more, with the last observation of a terminated episode, where nobody acts.

    A row needs one. Nothing is learned from it, as from that of an actor's last row; every action is legal.
    """
    mask = before.policy_input.action_mask
    policy_input = replace(
        before.policy_input,
        is_first=np.zeros(1, np.bool_),
        action_mask=None if mask is None else np.ones_like(mask),
    )
    return before._replace(seen=seen, policy_input=policy_input)


class Episode:
    """One episode of one environment, from its first step or from where an earlier process had stored it.

    A row is complete when the next step brings its reward, and is written one step later than that: if the client is
    gone, the newest complete row is the one that says so (`truncated`), and the observation behind it is its end. So
    nothing is stored that was not seen.
    """

    def __init__(
        self,
        spec: EnvSpec,
        recurrent_state_size: int,
        extra_columns: Signature,
        first_step: int = 0,
        *,
        clips_rewards: bool = False,
    ) -> None:
        """Begin.

        Args:
            spec: Shapes of the environment.
            recurrent_state_size: `Policy.recurrent_state_size`.
            extra_columns: Columns that the policy itself fills.
            first_step: Number of the first step that is wanted.
            clips_rewards: Whether the policy learns from the signs of rewards and sees those.
        """
        self._spec, self._extra_columns, self._clips_rewards = spec, extra_columns, clips_rewards
        self._has_state = recurrent_state_size > 0
        self._builder = PolicyInputBuilder(1, spec, recurrent_state_size)
        self._rng = np.random.default_rng()
        self._acted: Acted | None = None
        self._complete: Row | None = None
        self.next_step = first_step
        """Number of the step that comes next."""
        self.evaluate = False
        """Whether it is an evaluation."""
        self.evaluation: Evaluation | None = None
        """The evaluation of the evaluator's that it is part of."""
        self.has_reported = False
        """Whether the client has chosen an action itself."""
        self.is_over = False
        """Whether it has ended."""
        self.episode_return = 0.0
        """Sum of the rewards so far, as the client reported them."""
        self.is_whole = first_step == 0
        """Whether that is the episode's return: an earlier process has not taken its first steps."""

    def see(self, seen: SeenStep) -> PolicyInput | None:
        """Take a step; return what the policy sees of it, or None if it is the end of the episode.

        Raises:
            InvalidArgument: It is not the next step; nothing has changed.
        """
        if self.is_over or seen.step != self.next_step:
            raise InvalidArgument(f"step is {seen.step}, allowed: {0 if self.is_over else self.next_step}")
        self.evaluate = self.evaluate or seen.evaluate
        self.episode_return += seen.reward
        if seen.terminated:
            return None
        is_first = np.array([self._acted is None])
        mask = None if seen.action_mask is None else seen.action_mask[None]
        return self._builder.build(seen.observation[None], is_first, self._learned(seen.reward), mask)

    def _learned(self, reward: float) -> NDArray[np.float32]:
        """Return a reward, float32 [1], as the policy learns from it."""
        return np.array([np.sign(reward) if self._clips_rewards else reward], np.float32)

    def act(
        self, seen: SeenStep, policy_input: PolicyInput, answer: Answer, policy: SplitPolicy, env_steps: int
    ) -> Acted:
        """Return the decision at a step, given the network's output."""
        self.has_reported = self.has_reported or seen.reported is not None
        if self.evaluate:
            action = self._evaluated(seen, policy_input, answer)
            output = PolicyOutput(action, recurrent_state=answer.arrays.get("recurrent_state"))
        else:
            numbers = {name: torch.from_numpy(array) for name, array in answer.arrays.items()}
            if seen.reported is None:
                output = policy.choose(policy_input, numbers, env_steps)
            else:
                output = policy.choose(policy_input, numbers, env_steps, taken=seen.reported[None])
            check_extras(output.extras, self._extra_columns, 1)
            output = kept(output, policy_input.observation)
        self._builder.record(output)
        return Acted(seen, policy_input, output, answer.params_version if seen.reported is None else 0)

    def _evaluated(self, seen: SeenStep, policy_input: PolicyInput, answer: Answer) -> Array:
        """Return the action [1, *action_shape] of an evaluation."""
        spec, evaluation = self._spec, self.evaluation
        if seen.reported is not None:
            return seen.reported[None]
        if evaluation is not None and spec.is_discrete and self._rng.random() < evaluation.epsilon:
            mask = policy_input.action_mask
            legal = np.arange(spec.num_actions) if mask is None else np.flatnonzero(mask[0])
            return self._rng.choice(legal, 1)
        return answer.arrays["action"].astype(spec.action_dtype).reshape(1, *spec.action_shape)

    def advance(self, seen: SeenStep, acted: Acted | None) -> list[Row]:
        """Move on to the next step; return the rows that are to be written now.

        Args:
            seen: The step.
            acted: What was done at it; None at the end of an episode.
        """
        before, self._acted = self._acted, acted
        if before is not None and seen.terminated:
            self._acted = _ignored(before, seen)
        self.next_step += 1
        due = [] if self._complete is None else [self._complete]
        self._complete = None
        if before is not None and not self.evaluate:
            self._complete = self._row(before, seen.reward, terminated=seen.terminated, truncated=seen.truncated)
        if seen.terminated or seen.truncated:
            due += self._end()
        return due if not self.evaluate else []

    def abandon(self) -> list[Row]:
        """End the episode of a client that is gone, as truncated; return the rows that are to be written."""
        if self.is_over:
            return []
        if self._complete is not None:
            cut = {**self._complete.columns, "truncated": np.array(True)}
            self._complete = replace(self._complete, columns=cut)
        return self._end() if self._complete is not None else self._over()

    def _end(self) -> list[Row]:
        """Return the last complete row, and one with the last observation."""
        rows = [] if self._complete is None else [self._complete]
        if rows and self._acted is not None:
            last = self._row(self._acted, 0.0, terminated=False, truncated=False, is_reset_step=True)
            rows.append(last)
        self._over()
        return rows

    def _over(self) -> list[Row]:
        self.is_over, self._acted, self._complete = True, None, None
        return []

    def _row(
        self, acted: Acted, reward: float, *, terminated: bool, truncated: bool, is_reset_step: bool = False
    ) -> Row:
        policy_input, output = acted.policy_input, acted.output
        columns = step_columns(
            output,
            acted.seen.observation[None],
            policy_input.is_first,
            policy_input.action_mask,
            self._spec,
            reward=self._learned(reward),
            terminated=np.array([terminated]),
            truncated=np.array([truncated]),
        )
        return Row(
            columns={name: values[0, ...] for name, values in columns.items()},
            is_decision=not is_reset_step,
            beside={name: values[0, ...] for name, values in output.priority_inputs.items()}
            | {"is_reset_step": np.array(is_reset_step)},
            payload=policy_input.recurrent_state[0] if self._has_state else None,
            params_version=acted.params_version,
        )
