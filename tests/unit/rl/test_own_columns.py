"""Columns of an algorithm's own: declared by its settings, checked at the actor, carried to the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.naming import naming
from tidemill.errors import ConfigError, InvalidArgument
from tidemill.rl.policy_io import check_extras
from tidemill.rl.sequences import SequenceShape, sequences
from tidemill.rl.settings.deterministic import DDPGConfig
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import config_class, extra_columns_of, stored_columns
from tidemill.rl.transitions import transitions, unrolled_transitions
from tidemill.types import ColumnSpec, EnvSpec, Signature, signature_of

SPEC = EnvSpec((2,), "float32", num_actions=3)
LOG_PROB = ColumnSpec("log_prob", "float32", ())
VALUES = ColumnSpec("values", "float32", (3,))


@dataclass(frozen=True)
class WithColumns(DQNConfig):
    """DQN's settings with two columns more."""

    first: str = "log_prob"

    def extra_columns(self, env_spec: EnvSpec) -> Signature:
        """Return one whose name is a setting, and one of as many numbers as there are actions."""
        return (ColumnSpec(self.first, "float32", ()), ColumnSpec("values", "float32", (env_spec.num_actions,)))


def rows(count: int) -> dict[str, np.ndarray]:
    """Return the rows of a stream whose columns count up; row 3 is truncated, row 4 a final observation step."""
    truncated, is_first = np.zeros(count, bool), np.zeros(count, bool)
    truncated[3], is_first[[0, 5]] = True, True
    number = np.arange(count)
    return {
        "observation": np.stack([number, -number], axis=1).astype(np.float32),
        "action": number % 3,
        "reward": number.astype(np.float32),
        "terminated": np.zeros(count, bool),
        "truncated": truncated,
        "is_first": is_first,
        "log_prob": (number / 10).astype(np.float32),
        "values": np.repeat(number[:, None], 3, axis=1).astype(np.float32),
    }


def test_columns_follow_those_of_the_environment() -> None:
    """An algorithm without any stores what every environment brings."""
    assert stored_columns(DQNConfig(), SPEC) == signature_of(SPEC)
    assert extra_columns_of(WithColumns(), SPEC) == (LOG_PROB, VALUES)
    assert stored_columns(WithColumns(), SPEC) == (*signature_of(SPEC), LOG_PROB, VALUES)


@pytest.mark.parametrize("name", ["reward", "values"])
def test_name_that_is_taken_is_refused(name: str) -> None:
    """By a column of every environment, or by one that the environment adds."""
    with pytest.raises(ConfigError, match=naming("column", f"'{name}'")):
        stored_columns(WithColumns(first=name), SPEC)


@pytest.mark.parametrize(
    "extras,message",
    [
        ({}, "none column 'log_prob' float32 (4,)"),
        ({"log_prob": np.zeros(4)}, "float64 (4,) column 'log_prob' float32 (4,)"),
        ({"log_prob": np.zeros((), np.float32)}, "float32 () column 'log_prob'"),
        (
            {"log_prob": np.zeros(4, np.float32), "values": np.zeros((4, 1), np.float32)},
            "(4, 1) column 'values' float32 (4, 3)",
        ),
    ],
)
def test_actor_refuses_what_does_not_fit_the_declaration(extras: dict[str, np.ndarray], message: str) -> None:
    """Nothing is cast or broadcast in silence."""
    with pytest.raises(InvalidArgument, match=naming(message)):
        check_extras(extras, (LOG_PROB, VALUES), 4)


def test_actor_refuses_a_column_that_is_not_declared() -> None:
    """It would be dropped."""
    with pytest.raises(InvalidArgument, match=naming("'entropy' extra_columns")):
        check_extras({"log_prob": np.zeros(4, np.float32), "entropy": np.zeros(4)}, (LOG_PROB,), 4)


def test_transitions_bring_the_columns_of_the_first_action() -> None:
    """As they bring the action itself, behind the history of a stack."""
    index = np.arange(3)[:, None] + np.arange(4)  # stack of 2, 2 steps
    batch = transitions(rows(8), index, 2, 2, 0.5, extras=("log_prob", "values"))
    np.testing.assert_allclose(batch["log_prob"], [0.1, 0.2, 0.3], rtol=1e-6)
    assert batch["values"].tolist() == [[1, 1, 1], [2, 2, 2], [3, 3, 3]]
    assert "log_prob" not in transitions(rows(8), index, 2, 2, 0.5)


def test_sequences_bring_the_columns_of_the_unroll() -> None:
    """One for each step that is trained on: history 1, burn-in 1, unroll 3, one step to bootstrap from."""
    index = np.arange(2)[:, None] + np.arange(6)
    batch = sequences(rows(8), index, SequenceShape(1, 1, 3, 1), 0.5, extras=("values",))
    assert batch["values"][:, :, 0].tolist() == [[2, 3, 4], [3, 4, 5]]
    assert batch["action"].tolist() == [[2, 0, 1], [0, 1, 2]]


def test_unrolled_transitions_hold_each_step_and_end_at_a_truncation() -> None:
    """By hand: the window of rows 2 .. 5 is cut after row 3, whose value continues with row 4's observation."""
    batch = unrolled_transitions(rows(8), np.array([[2, 3, 4, 5]]), 1, 3, 0.5, extras=("log_prob",))
    assert batch["observation"][0, :, 0].tolist() == [2, 3, 4, 5]
    assert batch["action"].tolist() == [[2, 0, 1, 2]]
    assert batch["reward"].tolist() == [[2, 3, 4]]
    assert batch["discount"].tolist() == [[0.5, 0.5, 0.5]]
    assert batch["continues"].tolist() == [[True, False, True]]
    np.testing.assert_allclose(batch["log_prob"], [[0.2, 0.3, 0.4, 0.5]], rtol=1e-6)


def test_unrolled_transitions_stack_what_the_environment_showed() -> None:
    """Frames from before an episode are its first observation."""
    columns = rows(8)
    columns["terminated"][3], columns["truncated"][3] = True, False
    batch = unrolled_transitions(columns, np.array([[2, 3, 4, 5, 6]]), 2, 3, 0.5)
    assert batch["observation"][0, :, :, 0].tolist() == [[2, 3], [3, 4], [5, 5], [5, 6]]
    assert batch["discount"].tolist() == [[0.0, 0.5, 0.5]]


@pytest.mark.parametrize(
    "name,message",
    [
        ("retrace.config:Retrace", "retrace.config 'Retrace' 'RetraceConfig'"),
        ("nowhere_at_all:Config", "nowhere_at_all ModuleNotFoundError"),
        ("retrace.config:require", "build_agent build_policy"),
        ("tidemill.rl.settings.q_learning:DQNConfig", "build_agent build_policy"),
        ("retrace.config:", "module:name"),
    ],
)
def test_class_that_is_not_there_is_refused(name: str, message: str) -> None:
    """The message says what was looked for."""
    with pytest.raises(ConfigError, match=naming(message)):
        config_class(name)


def test_settings_of_every_algorithm_have_no_columns_of_their_own() -> None:
    """Those that come with the project store the six of every environment."""
    assert extra_columns_of(DDPGConfig(), SPEC) == ()
