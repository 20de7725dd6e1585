"""Settings of runs with simulators."""

from __future__ import annotations

import pytest

from tests.support.naming import naming
from tidemill.config.load import load, load_config
from tidemill.config.sections import InferenceConfig, RunConfig
from tidemill.errors import ConfigError


@pytest.mark.parametrize("algorithm", ["ppo", "impala", "pqn"])
@pytest.mark.parametrize("config", [RunConfig, InferenceConfig])
def test_algorithm_of_rollouts_is_refused_before_anything_starts(
    config: type[RunConfig | InferenceConfig], algorithm: str
) -> None:
    """A program with its own main loop cannot wait for a version; the message names algorithm and setting."""
    words = ["--agent.algorithm", algorithm, "--inference.simulators", "2"]
    with pytest.raises(
        ConfigError,
        match=naming(f"inference.simulators 2 learner.max_policy_lag agent.algorithm '{algorithm}' dqn sac td3 -1"),
    ):
        load(config, words, prog="tidemill", description="")


@pytest.mark.parametrize("each", [0, -2])
def test_share_of_a_client_is_at_least_one(each: int) -> None:
    """-1 is the default."""
    with pytest.raises(ConfigError, match=naming(f"inference.simulators_per_client {each} -1 1")):
        load_config({"inference": {"simulators": 2, "simulators_per_client": each}})


def test_algorithm_of_a_replay_takes_simulators() -> None:
    """Nothing is refused."""
    load_config({"agent": {"algorithm": "dqn"}, "inference": {"simulators": 2}})


@pytest.mark.parametrize("algorithm", ["ppo", "impala", "pqn"])
def test_algorithm_of_rollouts_takes_simulators_without_a_bound(algorithm: str) -> None:
    """The user has decided that no item is too old."""
    over = {"learner": {"max_policy_lag": -1}, "inference": {"simulators": 2}, "launcher": {"actors": 0}}
    config = load_config({"agent": {"algorithm": algorithm}, **over})
    assert config.learner.max_policy_lag == -1


_SIMULATED = {"id": "robot", "spaces": {"observation": ["float32", 4], "num_actions": 2}}


@pytest.mark.parametrize(
    "setting, value, message",
    [
        ("vector", "my:make", "'my:make' ''"),
        ("max_episode_steps", 9, "9 0 truncate"),
        ("max_evaluation_steps", 9, "9 0 truncate"),
        ("step_timeout_s", 9.0, "9.0 300.0 inference.simulator_timeout_s"),
        ("reset_timeout_s", 9.0, "9.0 0.0 inference.simulator_timeout_s"),
        ("on_failure", "stop", "'stop' 'restart'"),
        ("max_restarts", 9, "9 7"),
        ("restart_backoff_s", 9.0, "9.0 0.1"),
        ("isolate", True, "True False"),
        ("flatten", True, "True False"),
        ("observation_indices", [0], "(0,) ()"),
        ("joint_actions", True, "True False num_actions"),
        ("kwargs", {"gravity": 9}, "{'gravity': 9} {}"),
        ("action_mask", "info.legal", "'info.legal' '' masks_actions"),
    ],
)
def test_setting_that_simulators_do_not_read_is_refused(setting: str, value: object, message: str) -> None:
    """It acts on environments that Tidemill makes; the message says who has to do it instead."""
    with pytest.raises(ConfigError, match=naming(f"env.{setting} env.spaces", message)):
        load_config({"env": {**_SIMULATED, setting: value}})
    if setting != "vector":
        load_config({"env": {"id": "robot", setting: value}})


def test_settings_that_simulators_do_not_read_are_refused_together() -> None:
    """Each has its line. Stacked observations and the number of environments of a batch are not among them."""
    env = {**_SIMULATED, "observation_stack": 2, "num_envs": 8}
    load_config({"env": env})
    with pytest.raises(ConfigError) as refused:
        load_config({"env": {**env, "flatten": True, "isolate": True}})
    assert len(str(refused.value).splitlines()) == 2


def test_goals_of_simulators_are_rewarded_by_an_environment_with_arguments() -> None:
    """It is made to relabel goals, and its masks are told apart from its observations."""
    env = {**_SIMULATED, "kwargs": {"gravity": 9}, "action_mask": "observation.legal"}
    load_config({"env": env, "table": {"hindsight": 0.8}})
