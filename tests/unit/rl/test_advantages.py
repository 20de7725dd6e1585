"""Generalized advantages and V-trace against their definitions, and what must hold of any."""

from __future__ import annotations

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


def test_nothing_has_a_gradient() -> None:
    """Targets and advantages are constants to the losses that use them."""
    columns = rollout(0, 4)
    leaves = {name: columns[name].requires_grad_() for name in ("value", "next_value")}
    log_ratio = torch.zeros_like(columns["reward"], requires_grad=True)
    for found in (generalized_advantage(**columns | leaves, decay=0.9), vtrace(log_ratio, **columns | leaves)):
        assert not any(part.requires_grad for part in found)
