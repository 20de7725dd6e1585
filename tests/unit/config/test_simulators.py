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
    with pytest.raises(ConfigError, match=naming(f"inference.simulators 2 agent.algorithm '{algorithm}' dqn sac td3")):
        load(config, words, prog="tidemill", description="")


def test_algorithm_of_a_replay_takes_simulators() -> None:
    """Nothing is refused."""
    load_config({"agent": {"algorithm": "dqn"}, "inference": {"simulators": 2}})
