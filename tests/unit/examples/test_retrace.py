"""The Retrace example: its target against numbers worked out by hand, and what it learns from what was stored."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from retrace.config import RetraceConfig
from retrace.loss import retrace_target
from tests.support.batches import VECTOR, policy_input
from tests.support.naming import naming
from tidemill.config.load import load_config
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.types import EnvSpec

REWARD, NEXT_VALUE, NEXT_Q = [1.0, 2.0, 3.0], [4.0, 6.0, 8.0], [3.0, 5.0, 7.0]


@pytest.mark.parametrize(
    "discount,trace,expected",
    [
        # G2 = 3 + .5 * 8 = 7; G1 = 2 + .5 * (6 + .5 * (7 - 5)) = 5.5; G0 = 1 + .5 * (4 + .8 * (5.5 - 3)) = 4
        ([0.5, 0.5, 0.5], [0.8, 0.5, 9.0], [4.0, 5.5, 7.0]),
        # step 1 terminated: G1 = 2; G0 = 1 + .5 * (4 + .8 * (2 - 3)) = 2.6
        ([0.5, 0.0, 0.5], [0.8, 0.0, 9.0], [2.6, 2.0, 7.0]),
        # step 0 was truncated: it bootstraps from what followed it, and from nothing beyond
        ([0.5, 0.5, 0.5], [0.0, 0.5, 9.0], [3.0, 5.5, 7.0]),
        # lambda = 0 is one-step learning: r + .5 * V
        ([0.5, 0.5, 0.5], [0.0, 0.0, 0.0], [3.0, 5.0, 7.0]),
        # all traces 1 and Q = V would be the return alone: here G1 = 2 + .5 * (6 + 2) = 6, G0 = 1 + .5 * (4 + 3) = 4.5
        ([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], [4.5, 6.0, 7.0]),
    ],
)
def test_target_is_the_one_worked_out_by_hand(discount: list[float], trace: list[float], expected: list[float]) -> None:
    """From the last step of the window to the first."""
    columns = (torch.tensor(column)[:, None] for column in (REWARD, discount, trace, NEXT_VALUE, NEXT_Q))
    torch.testing.assert_close(retrace_target(*columns)[:, 0], torch.tensor(expected))


def test_policy_says_how_likely_its_actions_were() -> None:
    """With epsilon .4 and 4 actions, log of .1 for another than the best action, and of .7 for the best."""
    policy = build_policy(RetraceConfig(epsilon=0.4), VECTOR, seed=3)
    observation = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    best = policy.act(policy_input(observation), evaluation=True).action
    output = policy.act(policy_input(observation))
    log_prob = output.extras["log_prob"]
    assert log_prob.dtype == np.float32
    np.testing.assert_allclose(log_prob, np.log(np.where(output.action == best, 0.7, 0.1)), rtol=1e-6)
    assert 0 < (output.action != best).sum() < 120


def test_agent_goes_by_the_stored_log_probability() -> None:
    """The trace is lambda * min(1, pi / mu): a column that says e**5 in place of 1 makes it smaller by that."""
    agent = build_agent(RetraceConfig(steps=3), VECTOR, seed=1)
    stream = _stream(40)
    index = np.arange(20)[:, None] + np.arange(4)
    traces = []
    for log_prob in (0.0, 5.0):
        columns = stream | {"log_prob": np.full(40, log_prob, np.float32)}
        batch = {name: torch.from_numpy(array) for name, array in agent.decode(columns, index).items()}
        assert batch["log_prob"].shape == (20, 4)
        traces.append(copy.deepcopy(agent).update(batch, torch.ones(20)).metrics["trace"])
    assert traces[0] > 0
    torch.testing.assert_close(traces[0], traces[1] * float(np.exp(5.0)))


def test_settings_are_found_by_module_and_class() -> None:
    """In a config file as any algorithm's; its checks are its own."""
    config = load_config({"agent": {"algorithm": "retrace.config:RetraceConfig", "trace_decay": 0.5}})
    assert config.agent == RetraceConfig(trace_decay=0.5)
    with pytest.raises(ConfigError, match=naming("trace_decay 2.0 0 1")):
        load_config({"agent": {"algorithm": "retrace.config:RetraceConfig", "trace_decay": 2.0}})
    with pytest.raises(ConfigError, match=naming("continuous")):
        build_agent(config.agent, EnvSpec((3,), "float32", action_shape=(1,)))


def test_resumed_agent_equals_the_one_that_went_on() -> None:
    """What it stores is enough to continue bit for bit."""
    config = RetraceConfig()
    straight, resumed = build_agent(config, VECTOR, seed=1), build_agent(config, VECTOR, seed=2)
    columns = _stream(20) | {"log_prob": np.full(20, -0.5, np.float32)}
    arrays = straight.decode(columns, np.arange(8)[:, None] + np.arange(6))
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    straight.update(batch, torch.ones(8))
    resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
    for agent in (straight, resumed):
        agent.update(batch, torch.ones(8))
    expected, found = straight.policy_state(), resumed.policy_state()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def _stream(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "observation": rng.normal(size=(rows, 3)).astype(np.float32),
        "action": rng.integers(0, 4, rows),
        "reward": rng.normal(size=rows).astype(np.float32),
        "terminated": np.zeros(rows, bool),
        "truncated": np.zeros(rows, bool),
        "is_first": np.zeros(rows, bool),
    }
