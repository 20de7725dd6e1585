"""Rewards and ends computed by an environment from stored goals, and environments that cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.naming import naming
from tidemill.envs.goals import goal_rewards
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError

POINT = "tests.support.goal_envs:Point"


def test_stored_goals_are_rewarded_in_their_own_shape() -> None:
    """Three goals of 2x1 numbers, stored as vectors: minus their distances, float32; no goal ends an episode."""
    goals = goal_rewards(EnvSettings(POINT))
    achieved = np.array([[0, 0], [1, 2], [1, 2]], np.float32)
    desired = np.array([[3, 4], [1, 2], [1, 0]], np.float32)
    reward, terminated = goals.reward(achieved, desired), goals.terminated(achieved, desired)
    assert reward.dtype == np.float32
    assert reward.tolist() == [-7, 0, -2]
    assert terminated is not None
    assert terminated.tolist() == [False] * 3


@pytest.mark.parametrize("ends, expected", [("always", [False, True]), ("", None)])
def test_ends_are_the_environments(ends: str, expected: list[bool] | None) -> None:
    """One for each pair of goals; None from an environment that says nothing of them."""
    goals = goal_rewards(EnvSettings(POINT, {"ends": ends}))
    terminated = goals.terminated(np.array([[0, 0], [1, 2]], np.float32), np.array([[3, 4], [1, 2]], np.float32))
    assert (None if terminated is None else terminated.tolist()) == expected


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"id": "CartPole-v1"}, "achieved_goal desired_goal"),
        ({"id": POINT, "flatten": True}, "env.flatten"),
        ({"id": POINT, "kwargs": {"wrong": "no_goals"}}, "achieved_goal desired_goal"),
        ({"id": POINT, "kwargs": {"wrong": "no_reward"}}, "compute_reward"),
        ({"id": "my-robot", "spaces": {"observation": {}}}, "env.spaces Python compute_reward table.hindsight 0"),
        ({"id": POINT, "kwargs": {"wrong": "info"}}, "info"),
        ({"id": POINT, "kwargs": {"wrong": "optional_info"}}, "info"),
        ({"id": POINT, "kwargs": {"wrong": "single"}}, "() 2 [2]"),
        ({"id": POINT, "kwargs": {"wrong": "one_end"}}, "compute_terminated True 2"),
        ({"id": POINT, "kwargs": {"wrong": "shaped"}}, "reward"),
        ({"id": POINT, "kwargs": {"wrong": "raises"}}, "ValueError no goal like that"),
    ],
    ids=lambda value: "-".join(map(str, value.get("kwargs", value).values())) if isinstance(value, dict) else "",
)
def test_rewards_that_goals_do_not_determine_are_refused(settings: dict[str, Any], message: str) -> None:
    """One line that names the environment, what is wrong and what to do."""
    with pytest.raises(ConfigError, match=naming(message)) as raised:
        goal_rewards(EnvSettings(**settings))
    assert repr(settings["id"]) in str(raised.value)
