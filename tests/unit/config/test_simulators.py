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
