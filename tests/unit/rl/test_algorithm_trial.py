"""The trial of a user's algorithm names the method that fails or returns what cannot be used."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.batches import DISTINCT_CASES
from tests.support.naming import naming
from tests.support.own_algorithm import OwnAgent, OwnConfig, OwnPolicy
from tidemill.errors import ConfigError
from tidemill.rl.agents import algorithm_trial
from tidemill.rl.agents.algorithm_trial import try_algorithm
from tidemill.rl.agents.interface import PolicyContext, Update
from tidemill.rl.policy_io import PolicyOutput
from tidemill.rl.settings.registry import AgentConfig
from tidemill.types import ColumnSpec, EnvSpec, WindowSpec

_SPEC = EnvSpec((2,), "float32", num_actions=3)
_NAME = "'tests.support.own_algorithm:OwnConfig'"
_LOG_PROB = {"log_prob": np.zeros(2, np.float32)}


def test_algorithm_that_keeps_its_promises_is_taken() -> None:
    """With a stack of frames and with masks, too."""
    for spec in (_SPEC, replace(_SPEC, frame_stack=3), replace(_SPEC, masks_actions=True)):
        try_algorithm(OwnConfig(), spec)


@pytest.mark.parametrize("config, env_spec", DISTINCT_CASES.values(), ids=DISTINCT_CASES.keys())
def test_algorithm_of_the_project_would_be_taken_of_a_user(
    config: AgentConfig, env_spec: EnvSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial asks for nothing that they do not do."""
    monkeypatch.setattr(algorithm_trial, "ALGORITHMS", ())
    try_algorithm(config, env_spec, with_priority=True)


def _acts(action: object, **extras: Any) -> Any:  # noqa: ANN401
    return lambda *_, **__: PolicyOutput(action, extras=extras)  # type: ignore[arg-type]


def _updates(priority: object, **metrics: Any) -> Any:  # noqa: ANN401
    return lambda *_: Update(priority, metrics)  # type: ignore[arg-type]


def _returns(value: object) -> Any:  # noqa: ANN401
    return lambda *_: value


def _raises(*_: object, **__: object) -> None:
    raise RuntimeError("told to fail")


_RAISED = "RuntimeError: told to fail (test_algorithm_trial.py"
_WITH_GRADIENT = torch.ones(2, requires_grad=True)
_TWO_IN_TURN = cycle([{"mean": torch.zeros(2)}, {"mean": torch.ones(2)}])


@pytest.mark.parametrize(
    "owner, method, does, words",
    [
        (OwnConfig, "build_agent", _raises, f"build_agent {_RAISED}"),
        (OwnConfig, "build_policy", _raises, f"build_policy {_RAISED}"),
        (OwnAgent, "policy_state", _raises, f"policy_state {_RAISED}"),
        (OwnAgent, "policy_state", _returns({"mean": np.zeros(2)}), "policy_state float64 (2,) 'mean' tensor"),
        (OwnAgent, "policy_state", _returns({"mean": _WITH_GRADIENT}), "policy_state gradient 'mean'"),
        (OwnAgent, "policy_state", lambda agent: {"mean": agent._mean.view(1)}, "policy_state 'mean' memory copy"),
        (OwnAgent, "policy_state", _returns({"mean": torch.ones(2)}), "policy_state 'mean' memory copy"),
        (OwnAgent, "policy_state", lambda _: next(_TWO_IN_TURN), "policy_state 'mean' memory copy"),
        (OwnAgent, "policy_state", _returns({"mask": torch.tensor(-np.inf)}), "policy_state 'mask' finite"),
        (OwnAgent, "state_dict", _raises, f"state_dict {_RAISED}"),
        (OwnAgent, "state_dict", _returns({"rng": torch.Generator()}), "state_dict rng Generator tensor"),
        (OwnAgent, "state_dict", _returns({"mean": torch.tensor(-np.inf)}), "state_dict 'mean' finite"),
        (OwnAgent, "load_state_dict", _raises, f"load_state_dict {_RAISED}"),
        (OwnAgent, "recurrent_state_size", 3, "recurrent_state_size 3 0"),
        (OwnPolicy, "load", _raises, f"load {_RAISED}"),
        (OwnPolicy, "act", _raises, f"act {_RAISED}"),
        (OwnPolicy, "act", lambda *_, **__: np.zeros(2, np.int64), "act int64 (2,) PolicyOutput"),
        (OwnPolicy, "act", _acts(np.zeros((2, 1), np.int64), **_LOG_PROB), "act action int64 (2, 1) (2,)"),
        (OwnPolicy, "act", _acts(np.zeros(2), **_LOG_PROB), "act action float64 (2,) int64"),
        (OwnPolicy, "act", _acts(torch.zeros(2, dtype=torch.int64), **_LOG_PROB), "act action torch.int64 NumPy"),
        (OwnPolicy, "act", _acts(np.zeros(2, np.int64)), "act 'log_prob' none float32 (2,)"),
        (OwnPolicy, "initial_priority", _raises, f"initial_priority {_RAISED}"),
        (OwnPolicy, "initial_priority", lambda *_: 1.0, "initial_priority float float32 (2,)"),
        (OwnAgent, "decode", _raises, f"decode {_RAISED}"),
        (OwnAgent, "set_process_group", _raises, f"set_process_group {_RAISED}"),
        (OwnAgent, "update", _raises, f"update {_RAISED}"),
        (OwnAgent, "update", lambda *_: None, "update 'priority' NoneType"),
        (OwnAgent, "update", _updates(torch.zeros(())), "update priority torch.float32 () (4,)"),
        (OwnAgent, "update", _updates(torch.zeros(4, requires_grad=True)), "update priority gradient (4,)"),
        (OwnAgent, "update", _updates(torch.zeros(4), loss=0.5), "update float 'loss' scalar tensor"),
        (OwnAgent, "update", _updates(torch.zeros(4), q=torch.zeros(4)), "update torch.float32 (4,) 'q' scalar ()"),
    ],
)
def test_fault_of_an_algorithm_is_told_with_its_method(
    owner: type, method: str, does: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what came back and what is wanted, or the line that raised."""
    monkeypatch.setattr(owner, method, does)
    with pytest.raises(ConfigError, match=naming(_NAME, words)):
        try_algorithm(OwnConfig(), _SPEC, with_priority=True)


def test_state_is_tried_again_after_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer, for one, has more to keep from then on."""
    update = OwnAgent.update

    def updates(agent: OwnAgent, *arguments: Any) -> Update:  # noqa: ANN401
        monkeypatch.setattr(OwnAgent, "state_dict", lambda _: {"recent": deque()})
        return update(agent, *arguments)

    monkeypatch.setattr(OwnAgent, "update", updates)
    with pytest.raises(ConfigError, match=naming(_NAME, "state_dict recent deque")):
        try_algorithm(OwnConfig(), _SPEC)


def test_initial_priority_is_tried_for_a_prioritized_table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other calls it."""
    monkeypatch.setattr(OwnPolicy, "initial_priority", _raises)
    try_algorithm(OwnConfig(), _SPEC)


def test_recurrent_state_has_its_size_and_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stored byte by byte."""
    for owner in (OwnAgent, OwnPolicy):
        monkeypatch.setattr(owner, "recurrent_state_size", 3)
    for state in (None, np.zeros((2, 3)), np.zeros((2, 1), np.float32)):
        output = PolicyOutput(np.zeros(2, np.int64), recurrent_state=state, extras=_LOG_PROB)  # type: ignore[arg-type]
        monkeypatch.setattr(OwnPolicy, "act", lambda *_, output=output, **__: output)
        with pytest.raises(ConfigError, match=naming("act recurrent_state float32 (2, 3)")):
            try_algorithm(OwnConfig(), _SPEC)


def test_update_sees_the_columns_that_the_policy_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spread or probabilities of zeros would be refused by torch's distributions, which a run never has."""
    seen: list[Tensor] = []

    def update(_: OwnAgent, batch: dict[str, Tensor], weight: Tensor) -> Update:
        seen.append(torch.distributions.Normal(0.0, batch["spread"]).log_prob(weight))
        torch.distributions.Categorical(probs=batch["probs"])
        return Update(weight, {})

    spread = np.array([0.5, 2.0], np.float32)
    act = _acts(np.zeros(2, np.int64), spread=spread, probs=np.full((2, 3), 1 / 3, np.float32))
    monkeypatch.setattr(OwnPolicy, "act", act)
    columns = ColumnSpec("spread", "float32", ()), ColumnSpec("probs", "float32", (3,))
    monkeypatch.setattr(OwnConfig, "extra_columns", lambda *_: columns)
    monkeypatch.setattr(OwnAgent, "decode", lambda _, columns, index: {n: c[index[:, 0]] for n, c in columns.items()})
    monkeypatch.setattr(OwnAgent, "update", update)
    try_algorithm(OwnConfig(), _SPEC)
    assert seen[0].shape == (4,)


def test_policy_knows_how_many_environments_it_acts_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may make its noise for as many when it is built."""
    slots = []
    build = OwnConfig.build_policy

    def build_policy(config: OwnConfig, env_spec: EnvSpec, context: PolicyContext) -> OwnPolicy:
        slots.append(context.slot.num_envs)
        return build(config, env_spec, context)

    monkeypatch.setattr(OwnConfig, "build_policy", build_policy)
    try_algorithm(OwnConfig(), _SPEC)
    assert slots == [2]


def test_agent_has_its_process_group_before_it_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a learner, also in one that trains alone."""
    sizes = []
    update = OwnAgent.update

    def updates(agent: OwnAgent, *arguments: Any) -> Update:  # noqa: ANN401
        sizes.append(agent.group.size)  # type: ignore[attr-defined]
        return update(agent, *arguments)

    monkeypatch.setattr(OwnAgent, "set_process_group", lambda agent, group: setattr(agent, "group", group))
    monkeypatch.setattr(OwnAgent, "update", updates)
    try_algorithm(OwnConfig(), _SPEC)
    assert sizes == [1]


def test_window_of_an_agent_is_that_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors write items of the one, and the agent decodes the other."""
    build = OwnConfig.build_agent

    def build_agent(*arguments: Any) -> OwnAgent:  # noqa: ANN401
        agent = build(*arguments)
        agent.window = WindowSpec(0, 2)
        return agent

    monkeypatch.setattr(OwnConfig, "build_agent", build_agent)
    with pytest.raises(ConfigError, match=naming("window steps=2 steps=1")):
        try_algorithm(OwnConfig(), _SPEC)


@pytest.mark.parametrize(
    "device, has_gpu, is_made",
    [("cpu", True, True), ("auto", False, True), ("auto", True, False), ("cuda:1", True, False)],
)
def test_update_is_tried_where_a_learner_would_make_it_on_the_processor(
    device: str, has_gpu: bool, is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is meant for a GPU may take minutes here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert algorithm_trial.updates_on_cpu(device) == is_made


def test_update_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one that only a GPU can make."""
    monkeypatch.setattr(OwnAgent, "update", _raises)
    try_algorithm(OwnConfig(), _SPEC, with_update=False)
