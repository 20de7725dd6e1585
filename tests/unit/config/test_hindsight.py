"""Items with room for later goals, and settings that do not allow them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.naming import naming
from tidemill.config.hindsight import first_priority, item_window
from tidemill.config.load import load, load_config
from tidemill.config.sections import ActorConfig
from tidemill.config.table import TableSettings
from tidemill.errors import ConfigError
from tidemill.replay.chunk import SMALLEST_PRIORITY
from tidemill.types import WindowSpec

DQN = {"algorithm": "dqn", "n_step": 1}


def test_items_are_as_long_as_goals_may_be_away() -> None:
    """Their history stays; without hindsight nothing changes."""
    agent = load_config({"agent": DQN}).agent
    on, off = TableSettings(hindsight=0.8, hindsight_steps=50), TableSettings(hindsight_steps=50)
    assert item_window(agent, on, 3) == WindowSpec(history=2, steps=50)
    assert item_window(agent, off, 3) == agent.window(3) == WindowSpec(history=2, steps=1)


def count_and_first_reward(steps: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return the number of steps that a policy is shown plus the first one's reward, [K]."""
    return np.asarray(len(steps["reward"]) + steps["reward"][0], np.float32)


def test_first_priority_is_of_the_transition_alone() -> None:
    """The two steps of the transition as it was made; in a table that looks at no priorities all items are alike."""
    steps = {"reward": np.array([[0.25, 0.5], *[[9.0, 9.0]] * 5], np.float32)}
    for hindsight, length in ((0.8, 2), (0.0, 6)):
        priority = first_priority(TableSettings(sampler="prioritized", hindsight=hindsight), count_and_first_reward)
        assert callable(priority)
        assert priority(steps).tolist() == [length + 0.25 + SMALLEST_PRIORITY, length + 0.5 + SMALLEST_PRIORITY]
    assert first_priority(TableSettings(hindsight=0.8), count_and_first_reward) == 1.0 + SMALLEST_PRIORITY


@pytest.mark.parametrize(
    "sections, message",
    [
        ({"agent": {"algorithm": "dqn"}}, "agent.n_step 3 1 table.hindsight"),
        ({"agent": {"algorithm": "r2d2"}}, "'r2d2'"),
        ({"agent": {"algorithm": "sac", "lstm_size": 8}}, "'sac' agent.lstm_size 0"),
        ({"agent": DQN, "env": {"vector": "a:b"}}, "env.vector 'a:b' table.hindsight"),
        ({"agent": DQN, "table": {"hindsight": 1.5}}, "table.hindsight 1.5 0 1"),
        ({"agent": DQN, "table": {"hindsight_steps": 0}}, "table.hindsight_steps 0 1 10000"),
    ],
)
def test_settings_that_do_not_fit_are_refused(sections: dict[str, Any], message: str) -> None:
    """One line names the setting, its value and the remedy."""
    with pytest.raises(ConfigError, match=naming(message)):
        load_config({**sections, "table": {"hindsight": 0.8, **sections.get("table", {})}})


def test_on_policy_algorithms_are_refused() -> None:
    """PPO's items are whole rollouts; a process started by hand is refused as well."""
    words = ["--agent.algorithm", "ppo", "--table.sampler", "fifo", "--table.hindsight", "0.8"]
    words += ["--learner.updates-per-env-step", "0", "--table.min-size", "1", "--agent.unroll", "127"]
    with pytest.raises(ConfigError, match=naming("'ppo'")):
        load(ActorConfig, words, prog="actor", description="")


@pytest.mark.parametrize("steps, is_refused", [(31, False), (32, True)])
def test_deterministic_run_needs_items_before_its_first_draw(steps: int, is_refused: bool) -> None:
    """Two environments play 32 steps each before it: an item of 32 later steps would not be complete."""
    settings = {
        "run": {"deterministic": True, "round_steps": 32, "max_learner_steps": 10},
        "env": {"num_envs": 2},
        "table": {"min_size": 64, "hindsight": 0.8, "hindsight_steps": steps},
        "learner": {"updates_per_env_step": 0.25, "threads": 1},
    }
    if not is_refused:
        assert load_config(settings).table.hindsight_steps == steps
        return
    with pytest.raises(ConfigError, match=naming("min_size 64 32 hindsight_steps")):
        load_config(settings)
