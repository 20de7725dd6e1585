"""The acting loop: what it hands to the policy and stores of each step."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.faulty_envs import OverwritingEnv
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
from tidemill.rl.agents.build import build_policy
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import stored_columns
from tidemill.services.actor.acting.loop import ActingLoop
from tidemill.services.actor.acting.metrics import ActorMetrics
from tidemill.types import ColumnSpec, column_names


class _Params:
    """Parameters that never change."""

    version = env_steps = learner_steps = 0

    def refresh(self) -> None:
        """Do nothing."""


class _Writer:
    """Keeps the rows, and stops the loop after some."""

    env_steps = 0

    def __init__(self, count: int) -> None:
        self.rows: list[dict[str, NDArray[Any]]] = []
        self.beside: list[dict[str, NDArray[Any]]] = []
        self.stop = threading.Event()
        self._count = count

    def append(self, row: Mapping[str, NDArray[Any]], *, beside: Mapping[str, NDArray[Any]], **_: object) -> None:
        """Keep copies of a row, and of what came beside it."""
        self.rows.append({name: np.array(value) for name, value in row.items()})
        self.beside.append({name: np.array(value) for name, value in beside.items()})
        if len(self.rows) == self._count:
            self.stop.set()

    def push(self) -> None:
        """Do nothing."""


class _Handing:
    """A policy that hands out the stack that it saw."""

    recurrent_state_size = 0

    def act(self, policy_input: PolicyInput, env_steps: int = 0) -> PolicyOutput:
        """Return action 0."""
        seen = policy_input.observation
        action = np.zeros(len(seen), np.int64)
        return PolicyOutput(action, priority_inputs={"stack": seen}, extras={"newest": seen[:, -1]})


@pytest.mark.parametrize("holds", [False, True])
def test_held_row_has_what_its_own_policy_saw(holds: bool) -> None:
    """Its first priority is computed of it a step later, when the stack has been written over."""
    env = make_env(EnvSettings("tests.support.envs:counting", observation_stack=2), 2, training=True)
    writer = _Writer(8)
    newest = (ColumnSpec("newest", "float32", (2,)),)
    parts: Any = [env, _Handing(), _Params(), writer, ActorMetrics(1e9), lambda: None, newest]
    ActingLoop(*parts, holds=holds).run(0, writer.stop)
    assert len(writer.rows) >= 8
    for row, beside in zip(writer.rows, writer.beside, strict=True):
        np.testing.assert_array_equal(beside["stack"][:, -1], row["observation"])
        np.testing.assert_array_equal(row["newest"], row["observation"])


class _Alternating:
    """A policy that acts 1, and 0 in the environment with an odd number; keeps the last actions that it saw."""

    recurrent_state_size = 0

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def act(self, policy_input: PolicyInput, env_steps: int = 0) -> PolicyOutput:
        """Return the actions."""
        self.seen.append(policy_input.last_action.tolist())
        return PolicyOutput(np.array([1, 0], np.int64))


def test_environment_that_writes_to_its_actions_changes_none() -> None:
    """What is stored, and what the policy is told of its last step, is what it chose."""
    writer, policy = _Writer(4), _Alternating()
    parts: Any = [OverwritingEnv(2), policy, _Params(), writer, ActorMetrics(1e9), lambda: None]
    ActingLoop(*parts).run(0, writer.stop)
    assert [row["action"].tolist() for row in writer.rows] == [[1, 0]] * 4
    assert policy.seen == [[0, 0], *[[1, 0]] * 3]


def test_rows_have_the_masks_by_which_their_actions_were_chosen() -> None:
    """Random actions of 40 steps are legal by the mask beside them; the columns are those of the signature."""
    config = DQNConfig(network="mlp", hidden_sizes=(8,), exploration="schedule")
    env = make_env(EnvSettings("tests.support.envs:masked", action_mask="info.action_mask"), 3, training=True)
    writer = _Writer(40)
    policy = build_policy(config, env.spec)
    params: Any = _Params()
    stand_in: Any = writer
    ActingLoop(env, policy, params, stand_in, ActorMetrics(1e9), lambda: None).run(0, writer.stop)
    assert len(writer.rows) == 40
    for row in writer.rows:
        assert row.keys() == set(column_names(stored_columns(config, env.spec)))
        assert row["action_mask"].dtype == np.bool_
        assert row["action_mask"][np.arange(3), row["action"]].all()
