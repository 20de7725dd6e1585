"""Where a run's experience is kept, and what resume says of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.support.naming import naming
from tidemill.config.load import load_config
from tidemill.config.sections import RunConfig
from tidemill.config.services import StorageSettings
from tidemill.errors import ConfigError
from tidemill.services.launcher.commands.summary import describe_restored
from tidemill.services.launcher.run.paths import check_simulators, with_storage


@pytest.mark.parametrize(
    "storage, folder",
    [
        (StorageSettings(), "{run}/replay/{shard}"),
        (StorageSettings(folder="/fast/log"), "/fast/log"),
        (StorageSettings(memory_only=True), ""),
    ],
)
def test_run_keeps_its_log_in_its_folder_unless_told_otherwise(storage: StorageSettings, folder: str) -> None:
    """Nothing given: the run's folder; a folder given: that one; memory only: none."""
    config = RunConfig()
    config = dataclasses.replace(config, replay=dataclasses.replace(config.replay, storage=storage))
    found = with_storage(config)
    assert found.replay.storage == dataclasses.replace(storage, folder=folder)
    assert dataclasses.replace(found, replay=config.replay) == config


def test_resume_says_whether_experience_comes_back(tmp_path: Path) -> None:
    """With a log the tables come back, without one they fill again."""
    assert any("not restored: there is no log" in line for line in describe_restored(tmp_path, RunConfig()))
    (tmp_path / "replay" / "0").mkdir(parents=True)
    (tmp_path / "replay" / "0" / "00000001.log").touch()
    assert any("from the log" in line for line in describe_restored(tmp_path, RunConfig()))


@pytest.mark.parametrize(
    "actors, source, message, right",
    [
        (0, "env", "evaluator.source 'env' 'simulators' env.spaces", "launcher.actors"),
        (2, "simulators", "launcher.actors 2 0 env.spaces", "evaluator.source"),
        (2, "env", "launcher.actors 2 0 evaluator.source 'env' 'simulators' env.spaces env.spaces", "nothing"),
    ],
)
def test_only_what_is_wrong_with_a_run_of_simulators_is_named(
    actors: int, source: str, message: str, right: str
) -> None:
    """A setting that is as it must be is not asked for."""
    spaces = {"observation": ["float32", 4], "num_actions": 2}
    config = load_config(
        {
            "env": {"id": "robot", "spaces": spaces},
            "agent": {"algorithm": "dqn"},
            "launcher": {"actors": actors, "inference": 1},
            "inference": {"simulators": 2},
            "evaluator": {"source": source},
        }
    )
    with pytest.raises(ConfigError, match=naming(message)) as refused:
        check_simulators(config)
    assert right not in str(refused.value)
