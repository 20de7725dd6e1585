"""n-step returns against sums worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.naming import naming
from tidemill.rl.returns import NStep, n_step


def returns(reward: list[float], terminated: int | None = None, truncated: int | None = None) -> NStep:
    """Return the n-step return of one window that ends, or not, at the given positions."""
    steps = np.arange(len(reward))
    return n_step(
        np.array([reward], dtype=np.float32), (steps == terminated)[None], (steps == truncated)[None], gamma=0.5
    )


def test_window_inside_an_episode_sums_all_rewards() -> None:
    """1 + 2/2 + 4/4 = 3, and the value after three steps counts 1/8."""
    result = returns([1, 2, 4])
    assert result.return_ == 3.0
    assert result.discount == 0.125
    assert result.bootstrap_index == 3


def test_terminated_step_ends_the_sum_and_the_value() -> None:
    """1 + 2/2 = 2; the third reward belongs to another episode, and nothing follows termination."""
    result = returns([1, 2, 4], terminated=1)
    assert result.return_ == 2.0
    assert result.discount == 0.0
    assert result.bootstrap_index == 2


def test_truncated_step_ends_the_sum_but_not_the_value() -> None:
    """1 + 2/2 = 2; the value of the final observation step, two steps on, counts 1/4."""
    result = returns([1, 2, 4], truncated=1)
    assert result.return_ == 2.0
    assert result.discount == 0.25
    assert result.bootstrap_index == 2


def test_step_both_terminated_and_truncated_does_not_bootstrap() -> None:
    """Termination wins."""
    assert returns([1, 2, 4], terminated=0, truncated=0).discount == 0.0


def test_only_the_first_end_counts() -> None:
    """A termination after a truncation is of the next episode."""
    result = returns([1, 2, 4], truncated=0, terminated=2)
    assert result.return_ == 1.0
    assert result.discount == 0.5
    assert result.bootstrap_index == 1


def test_end_at_the_last_step_of_the_window() -> None:
    """All rewards are summed, and termination still cuts the value."""
    result = returns([1, 2, 4], terminated=2)
    assert result.return_ == 3.0
    assert result.discount == 0.0
    assert result.bootstrap_index == 3


@pytest.mark.parametrize("after", [np.nan, np.inf])
def test_rewards_after_the_end_are_never_looked_at(after: float) -> None:
    """The reward of a final observation step means nothing, not even if it is not a number."""
    assert returns([1, after], truncated=0).return_ == 1.0


def test_windows_of_a_batch_are_independent_and_typed() -> None:
    """Each row has its own end; results are float32, float32 and int64 of shape [B]."""
    reward = np.ones((3, 2), dtype=np.float32)
    terminated = np.array([[False, False], [True, False], [False, True]])
    result = n_step(reward, terminated, np.zeros((3, 2), dtype=bool), gamma=0.9)
    np.testing.assert_allclose(result.return_, [1.9, 1.0, 1.9], rtol=1e-6)
    np.testing.assert_allclose(result.discount, [0.81, 0.0, 0.0], rtol=1e-6)
    assert result.bootstrap_index.tolist() == [2, 1, 2]
    assert [field.dtype for field in result] == [np.float32, np.float32, np.int64]


def test_arguments_of_different_shapes_are_refused() -> None:
    """A mistake in the caller stops at the border."""
    flags = np.zeros((1, 2), dtype=bool)
    with pytest.raises(AssertionError, match=naming("reward terminated truncated")):
        n_step(np.zeros((1, 3), dtype=np.float32), flags, flags, gamma=0.9)
