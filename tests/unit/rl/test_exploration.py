"""Schedules at their ends and in between."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.naming import naming
from tidemill.errors import InvalidArgument
from tidemill.rl.exploration import ActorSlot, EpsilonGreedy, EpsilonSettings, epsilon_ladder, linear


def test_ladder_of_the_cluster_goes_from_base_to_base_to_the_power_1_plus_alpha() -> None:
    """Ape-X's eight actors: .4, .4^2, ... .4^8."""
    rungs = [epsilon_ladder(ActorSlot(index, 1, 8), base=0.4, alpha=7.0) for index in range(8)]
    np.testing.assert_allclose(np.concatenate(rungs), [0.4**k for k in range(1, 9)])


def test_ladder_of_several_environments_an_actor_is_one_ladder_over_all() -> None:
    """Two actors of two environments stand on the rungs of four."""
    lower = epsilon_ladder(ActorSlot(0, 2, 2), base=0.5, alpha=3.0)
    upper = epsilon_ladder(ActorSlot(1, 2, 2), base=0.5, alpha=3.0)
    np.testing.assert_allclose(np.concatenate([lower, upper]), [0.5, 0.25, 0.125, 0.0625])


def test_ladder_of_one_environment_is_base() -> None:
    """There is no 0/0."""
    np.testing.assert_allclose(epsilon_ladder(ActorSlot(), base=0.4, alpha=7.0), [0.4])


def test_actor_beyond_the_planned_number_shares_a_rung() -> None:
    """An actor added while the cluster runs starts again at the front."""
    late = epsilon_ladder(ActorSlot(3, 2, 2), base=0.5, alpha=3.0)
    np.testing.assert_array_equal(late, epsilon_ladder(ActorSlot(1, 2, 2), base=0.5, alpha=3.0))


def test_place_without_an_environment_is_refused() -> None:
    """The message shows the place."""
    with pytest.raises(InvalidArgument, match=naming("num_envs=0")):
        ActorSlot(num_envs=0)


@pytest.mark.parametrize("env_steps,epsilon", [(0, 1.0), (50, 0.55), (100, 0.1), (10_000, 0.1)])
def test_epsilon_schedule_falls_linearly_then_stays(env_steps: int, epsilon: float) -> None:
    """From 1 to .1 over 100 steps of the cluster."""
    assert linear(env_steps, 1.0, 0.1, 100) == pytest.approx(epsilon)


def test_policy_alone_spreads_the_ladder_over_the_environments_it_is_given() -> None:
    """As `load_policy` may be asked for any number of them; an actor of several has its place and keeps it."""
    settings = EpsilonSettings(ladder_base=0.4, ladder_alpha=7.0)
    alone = EpsilonGreedy(settings, ActorSlot(), seed=0)
    np.testing.assert_allclose(alone.epsilon(0, 8), [0.4**k for k in range(1, 9)])
    np.testing.assert_allclose(alone.epsilon(0, 1), [0.4])
    with pytest.raises(AssertionError):
        EpsilonGreedy(settings, ActorSlot(0, 2, 2), seed=0).epsilon(0, 8)
