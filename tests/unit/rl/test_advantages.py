"""Generalized advantages and V-trace: numbers worked out by hand, slow implementations, and what must hold of any."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tidemill.rl.losses import generalized_advantage, vtrace

Columns = dict[str, Any]


def rollout(seed: int, steps: int, streams: int = 3) -> Columns:
    """Return a random rollout whose steps end an episode, either way, about one time in four."""
    rng = np.random.default_rng(seed)
    shape = (steps, streams)
    terminated = rng.random(shape) < 0.12
    truncated = ~terminated & (rng.random(shape) < 0.12)
    numbers = {name: rng.normal(size=shape) for name in ("reward", "value", "next_value")}
    columns: dict[str, Any] = {"reward": numbers["reward"], "discount": 0.9 * ~terminated}
    columns |= {"continues": ~(terminated | truncated), "value": numbers["value"]}
    # within an episode the value that follows is that of the next step
    following = np.concatenate((numbers["value"][1:], numbers["next_value"][-1:]))
    columns["next_value"] = np.where(columns["continues"], following, numbers["next_value"])
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def slow(columns: Columns, weight_rho: Tensor, weight_c: Tensor) -> Tensor:
    """Return the sum over k of the product of traces times rho * delta, by the definition, for each step alone."""
    reward, discount, continues, value, following = (column.numpy() for column in columns.values())
    steps, streams = reward.shape
    total = np.zeros((steps, streams))
    for stream in range(streams):
        for start in range(steps):
            factor = 1.0
            for k in range(start, steps):
                delta = reward[k, stream] + discount[k, stream] * following[k, stream] - value[k, stream]
                total[start, stream] += factor * float(weight_rho[k, stream]) * delta
                if not continues[k, stream]:
                    break
                factor *= discount[k, stream] * float(weight_c[k, stream])
    return torch.from_numpy(total)


def column(*numbers: float) -> Tensor:
    """Return one stream, [T, 1]."""
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def test_generalized_advantage_by_hand() -> None:
    """Gamma and lambda 1/2: errors of 2, 1 and 4 add up to 2 + (1 + 4/4)/4, 1 + 4/4 and 4."""
    found = generalized_advantage(
        reward=column(2, 1, 5),
        discount=column(0.5, 0.5, 0.5),
        continues=torch.ones((3, 1), dtype=torch.bool),
        value=column(1, 2, 4),
        next_value=column(2, 4, 6),
        decay=0.5,
    )
    assert found.advantage.flatten().tolist() == [2.5, 2.0, 4.0]
    assert found.target.flatten().tolist() == [3.5, 4.0, 8.0]


def test_termination_and_truncation_by_hand() -> None:
    """Both stop what flows back; the truncated step counts the value of its last observation, the terminated none."""
    found = generalized_advantage(
        reward=column(1, 1, 1),
        discount=column(0.0, 0.5, 0.5),
        continues=torch.tensor([[False], [False], [True]]),
        value=column(0, 0, 0),
        next_value=column(100, 8, 4),
        decay=1.0,
    )
    assert found.advantage.flatten().tolist() == [1.0, 5.0, 3.0]


def test_v_trace_by_hand() -> None:
    """Ratios of 2 and 1/2 are bounded to 1 and 1/2: v_1 = 2 + (5 - 2)/2, v_0 = 1 + (1 + 1/2 * 2 - 1) + 1/2 * 1.5."""
    found = vtrace(
        column(math.log(2), math.log(0.5)),
        reward=column(1, 3),
        discount=column(0.5, 0.5),
        continues=torch.ones((2, 1), dtype=torch.bool),
        value=column(1, 2),
        next_value=column(2, 4),
    )
    torch.testing.assert_close(found.target, column(2.75, 3.5))
    torch.testing.assert_close(found.advantage, column(1 + 0.5 * 3.5 - 1, 0.5 * 3))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0, 1))
def test_generalized_advantage_is_its_definition(seed: int, steps: int, decay: float) -> None:
    """The sum of all later errors of the episode, each weighted by (gamma * lambda)**distance."""
    columns = rollout(seed, steps)
    ones = torch.ones_like(columns["reward"])
    found = generalized_advantage(**columns, decay=decay)
    torch.testing.assert_close(found.advantage, slow(columns, ones, decay * ones))
    torch.testing.assert_close(found.target, found.advantage + columns["value"])


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0, 1), st.floats(1, 3), st.floats(0.3, 1))
def test_v_trace_is_its_definition(seed: int, steps: int, decay: float, max_rho: float, max_c: float) -> None:
    """Equation 1 of the paper, for each step alone."""
    columns = rollout(seed, steps)
    log_ratio = torch.from_numpy(np.random.default_rng(seed + 1).normal(size=columns["reward"].shape))
    ratio = log_ratio.exp()
    found = vtrace(log_ratio, **columns, max_rho=max_rho, max_c=max_c, decay=decay)
    expected = slow(columns, ratio.clamp(max=max_rho), decay * ratio.clamp(max=max_c))
    torch.testing.assert_close(found.target, columns["value"] + expected)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_on_policy_v_trace_is_the_bootstrapped_return(seed: int, steps: int) -> None:
    """With ratios of 1 and bounds of 1 the target is that of lambda 1, and so is the advantage: no value between."""
    columns = rollout(seed, steps)
    found = vtrace(torch.zeros_like(columns["reward"]), **columns)
    expected = generalized_advantage(**columns, decay=1.0)
    torch.testing.assert_close(found.target, expected.target)
    torch.testing.assert_close(found.advantage, expected.advantage)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_lambda_one_is_monte_carlo_less_the_value(seed: int, steps: int) -> None:
    """Rewards are summed to the episode's end, or to the rollout's, where the value is bootstrapped from."""
    columns = rollout(seed, steps)
    return_ = columns["next_value"][-1]
    expected = torch.empty_like(columns["reward"])
    for step in range(steps - 1, -1, -1):
        following = torch.where(columns["continues"][step], return_, columns["next_value"][step])
        return_ = columns["reward"][step] + columns["discount"][step] * following
        expected[step] = return_ - columns["value"][step]
    torch.testing.assert_close(generalized_advantage(**columns, decay=1.0).advantage, expected)


def test_nothing_has_a_gradient() -> None:
    """Targets and advantages are constants to the losses that use them."""
    columns = rollout(0, 4)
    leaves = {name: columns[name].requires_grad_() for name in ("value", "next_value")}
    log_ratio = torch.zeros_like(columns["reward"], requires_grad=True)
    for found in (generalized_advantage(**columns | leaves, decay=0.9), vtrace(log_ratio, **columns | leaves)):
        assert not any(part.requires_grad for part in found)
