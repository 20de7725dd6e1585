"""The policy of an actor in lock-step: a new one for each round, whose outputs are recorded and can be played again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Policy
from tidemill.rl.policy_io import PolicyInput, PolicyOutput

_ACTION, _EXTRA, _INPUT = "action", "extra:", "priority:"


class RoundPolicy:
    """Acts as the policies that it builds, one for each round: what a round's policy does depends on its seed alone.

    Exploration that lasts over several steps therefore starts again with each round.
    """

    def __init__(
        self, build: Callable[[int], Policy], env_steps_of: Callable[[int, int], int], *, wants_inputs: bool
    ) -> None:
        """Build the first round's policy.

        Args:
            build: Returns the policy of a round, given its number.
            env_steps_of: Returns the agent decisions of the whole cluster before a step, given its round's number and
                its place there, for schedules of exploration.
            wants_inputs: Whether anyone asks for initial priorities.
        """
        self._build, self._env_steps_of, self._wants_inputs = build, env_steps_of, wants_inputs
        self._state: Mapping[str, Tensor] | None = None
        self._policy = build(1)
        self.recurrent_state_size = self._policy.recurrent_state_size
        self._number, self._is_past = 1, False
        self._given: Mapping[str, NDArray[Any]] | None = None
        self._outputs: list[dict[str, NDArray[Any]]] = []

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the parameters, for this round and those after it."""
        self._state = state
        self._policy.load(state)

    def begin(self, number: int, given: Mapping[str, NDArray[Any]] | None = None, *, is_past: bool = False) -> None:
        """Begin a round.

        Args:
            number: Its number.
            given: Its recorded outputs, [K, N, ...] each, to put out once more; None has the policy act.
            is_past: Whether its messages were stored long ago, so that initial priorities do not matter.
        """
        self._number, self._given, self._is_past, self._outputs = number, given, is_past, []
        if not is_past and number > 1:
            self._policy = self._build(number)
            if self._state is not None:
                self._policy.load(self._state)

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Return all outputs of this round, [K, N, ...] each."""
        return {name: np.stack([each[name] for each in self._outputs]) for name in self._outputs[0]}

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Choose actions, or put out the recorded ones; `env_steps`, which depends on when answers come, is unused."""
        assert not evaluation, f"an actor explores (at {env_steps} env steps)"
        place = len(self._outputs)
        if self._given is not None:
            row = {name: column[place] for name, column in self._given.items()}
        else:
            output = self._policy.act(policy_input, self._env_steps_of(self._number, place))
            inputs = output.priority_inputs if self._wants_inputs else {}
            row = {_ACTION: output.action}
            row |= {f"{_EXTRA}{name}": column for name, column in output.extras.items()}
            row |= {f"{_INPUT}{name}": column for name, column in inputs.items()}
        self._outputs.append(row)
        return PolicyOutput(row[_ACTION], _named(row, _INPUT), extras=_named(row, _EXTRA))

    def initial_priority(self, steps: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the policy's initial priorities of K windows, [K]; anything for a round that is past."""
        if self._is_past:
            return np.zeros(steps["reward"].shape[1], np.float32)
        return self._policy.initial_priority(steps)


def _named(row: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): column for name, column in row.items() if name.startswith(prefix)}
