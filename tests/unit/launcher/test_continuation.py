"""A resumed run's limits lie ahead of what it has done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.batches import CONTINUOUS, VECTOR
from tests.support.naming import naming
from tidemill.config.digest import training_settings
from tidemill.config.load import by_sections, load_config
from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.config.services import LauncherSettings, ReplaySettings, StorageSettings
from tidemill.config.table import TableSettings
from tidemill.errors import ConfigError
from tidemill.scores import NOT_EVALUATED
from tidemill.services.launcher.run.continuation import check_continues, check_limits, trained_settings
from tidemill.services.learner.checkpoint.format import Checkpoint, encode
from tidemill.settings.overlay import to_document


def test_limit_that_a_run_has_passed_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """37 s of training and a new limit of 15 s: nothing would be trained; a limit beyond that is taken."""
    (tmp_path / "wall_clock.json").write_text(json.dumps({"session_start_s": 0, "before_s": 0, "wall_s": 37.0}))
    before = RunConfig(run=RunSettings(max_wall_s=20.0))
    check_limits(before, before, tmp_path)
    check_limits(before, replace(before, run=RunSettings(max_wall_s=60.0)), tmp_path)
    check_limits(before, replace(before, run=RunSettings()), tmp_path)
    with pytest.raises(ConfigError, match=naming("run.max_wall_s 15 37")):
        check_limits(before, replace(before, run=RunSettings(max_wall_s=15.0)), tmp_path)


def test_limit_of_steps_that_a_run_has_passed_is_refused(tmp_path: Path) -> None:
    """The newest evaluation says how far it is at least."""
    columns = (
        "wall_s,learner_steps,env_steps,params_version,episodes,mean,std,min,max,median,mean_length,human_normalised"
    )
    (tmp_path / "scores.csv").write_text(f"{columns}\n9.5,500,2000,5,2,1.0,0.0,1.0,1.0,1.0,7.0,\n")
    before = RunConfig(run=RunSettings(max_env_steps=2000))
    with pytest.raises(ConfigError, match=naming("run.max_learner_steps 400 500")):
        check_limits(before, replace(before, run=RunSettings(max_learner_steps=400)), tmp_path)
    check_limits(before, replace(before, run=RunSettings(max_env_steps=2001)), tmp_path)


def test_limit_of_steps_that_the_checkpoint_has_passed_is_refused(tmp_path: Path) -> None:
    """No evaluation was made that late. An ended run continues at its limit only to make up for its last evaluation."""
    counters = {"learner_steps": 500, "base_env_steps": 300, "server_env_steps/a": 900, "server_env_steps/b": 800}
    file = tmp_path / "checkpoints" / "checkpoint-000001-00000001.safetensors"
    file.parent.mkdir()
    file.write_bytes(encode(Checkpoint("dqn", {}, "", counters, {"weight": torch.zeros(1)}, {})))
    before = RunConfig(run=RunSettings(max_env_steps=2000, max_learner_steps=500))
    for run, named in (
        (RunSettings(max_learner_steps=499), "run.max_learner_steps 499 500"),
        (RunSettings(max_env_steps=1999), "run.max_env_steps 1999 2,000"),
    ):
        with pytest.raises(ConfigError, match=naming(named)):
            check_limits(before, replace(before, run=run), tmp_path)
    check_limits(before, before, tmp_path)
    reason = "run.max_env_steps (2000) reached"
    (tmp_path / "result.json").write_text(json.dumps({"reason": f"{reason}; {NOT_EVALUATED}"}))
    check_limits(before, before, tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"reason": reason}))
    with pytest.raises(ConfigError, match=naming("run.max_env_steps 2000")):
        check_limits(before, before, tmp_path)


def test_exponent_of_a_table_that_is_restored_stays() -> None:
    """The table refuses another one; of other samplers it means nothing, and a new table takes any."""

    def with_table(**settings: Any) -> RunConfig:  # noqa: ANN401 - what the section takes
        return RunConfig(table=TableSettings(**settings))

    before, now = (with_table(sampler="prioritized", priority_exponent=each) for each in (0.6, 0.5))
    with pytest.raises(
        ConfigError, match=naming("table.priority_exponent 0.5 0.6 `tidemill replay update` table.name run.name")
    ):
        check_continues(before, now, lambda _: CONTINUOUS)
    check_continues(before, replace(now, table=replace(now.table, name="new")), lambda _: CONTINUOUS)
    check_continues(with_table(priority_exponent=0.6), with_table(priority_exponent=0.5), lambda _: CONTINUOUS)


def test_table_that_is_not_restored_may_have_other_items() -> None:
    """It was in memory only, unless another program or a folder keeps it."""
    before = RunConfig(table=TableSettings(sampler="prioritized", chunk_length=64))
    table = TableSettings(sampler="prioritized", priority_exponent=0.5, chunk_length=32)
    now = replace(before, table=table, replay=ReplaySettings(storage=StorageSettings(memory_only=True)))
    check_continues(before, now, lambda _: CONTINUOUS)
    kept = ReplaySettings(storage=StorageSettings("/fast/log"))
    for each in (replace(now, launcher=LauncherSettings(replay=False)), replace(now, replay=kept)):
        with pytest.raises(ConfigError, match=naming("table.priority_exponent 0.5")):
            check_continues(before, each, lambda _: CONTINUOUS)


@pytest.mark.parametrize(
    "wrong, named",
    [
        ({"agent.hidden_sizes": [8]}, "agent.hidden_sizes [8] [16] networks"),
        ({"agent.n_step": 3}, "agent.n_step 3 1 items"),
        ({"agent.algorithm": "td3"}, "agent.algorithm 'td3' 'sac' algorithm."),
    ],
)
def test_refusal_names_only_the_settings_that_do_not_fit(wrong: dict[str, object], named: str) -> None:
    """The size of a batch may change, and is not named."""
    agent = {"agent.algorithm": "sac", "agent.hidden_sizes": [16]}
    before, now = (load_config(by_sections(agent | more)) for more in ({}, {"agent.batch_size": 7} | wrong))
    with pytest.raises(ConfigError, match=naming(named)) as raised:
        check_continues(before, now, lambda _: CONTINUOUS)
    assert "batch_size" not in str(raised.value)


@pytest.mark.parametrize(
    "agent, name, values",
    [
        ({"agent.algorithm": "dqn"}, "agent.distribution", ("c51", "qr")),
        ({"agent.algorithm": "ppo"}, "agent.activation", ("tanh", "relu")),
        ({"agent.algorithm": "ddpg"}, "agent.actor_activation", ("relu", "tanh")),
        ({"agent.algorithm": "sac"}, "env.observation_indices", ([0, 1], [0, 2])),
    ],
)
def test_settings_with_which_the_same_numbers_are_another_network_are_refused(
    agent: dict[str, object], name: str, values: tuple[object, object]
) -> None:
    """All shapes are equal."""
    before, now = (load_config(by_sections(agent | {name: value})) for value in values)
    spec = VECTOR if name == "agent.distribution" else CONTINUOUS
    with pytest.raises(ConfigError, match=naming(f"{name} another network")):
        check_continues(before, now, lambda _: spec)


@pytest.mark.parametrize(
    "edited, named",
    [
        ({"agent.hidden_sizes": [8]}, "agent.hidden_sizes [8] [16] networks"),
        ({"agent.n_step": 3}, "agent.n_step 3 1 items"),
        ({"table.sampler": "prioritized"}, "table.sampler 'prioritized' 'uniform' items"),
        ({"agent.algorithm": "td3"}, "agent.algorithm 'td3' 'sac' algorithm"),
    ],
)
def test_settings_edited_in_the_file_of_a_run_are_compared_with_its_checkpoint(
    edited: dict[str, object], named: str, tmp_path: Path
) -> None:
    """The checkpoint has what the run trained with; of an early version, or none, it does not tell."""
    agent = {"agent.algorithm": "sac", "agent.hidden_sizes": [16]}
    trained, now = (load_config(by_sections(agent | more)) for more in ({}, edited))
    assert trained_settings(now, tmp_path) is now
    checkpoint = Checkpoint("sac", {}, "", {}, {"weight": torch.zeros(1)}, {}, settings=training_settings(trained))
    file = tmp_path / "checkpoints" / "checkpoint-000001-00000001.safetensors"
    file.parent.mkdir()
    file.write_bytes(encode(checkpoint))
    assert trained_settings(now, tmp_path) is now
    file.write_bytes(encode(replace(checkpoint, table=to_document(trained.table))))
    with pytest.raises(ConfigError, match=naming(named)):
        check_continues(trained_settings(now, tmp_path), now, lambda _: CONTINUOUS)
    assert trained_settings(trained, tmp_path) == trained


def test_table_that_is_newer_than_the_checkpoint_may_have_other_items(tmp_path: Path) -> None:
    """A resume that was given a new table may have been killed before its first checkpoint."""
    trained, now = (load_config(by_sections({"agent.n_step": n, "table.name": f"t{n}"})) for n in (1, 3))
    checkpoint = Checkpoint("dqn", {}, "", {}, {"weight": torch.zeros(1)}, {}, settings=training_settings(trained))
    file = tmp_path / "checkpoints" / "checkpoint-000001-00000001.safetensors"
    file.parent.mkdir()
    file.write_bytes(encode(replace(checkpoint, table=to_document(trained.table))))
    check_continues(trained_settings(now, tmp_path), now, lambda _: CONTINUOUS)


def test_run_that_has_ended_continues_only_beyond_its_end(tmp_path: Path) -> None:
    """At the limit or the target that ended it nothing would be trained, and its result would be written again."""
    (tmp_path / "wall_clock.json").write_text(json.dumps({"session_start_s": 0, "before_s": 0, "wall_s": 37.0}))
    before = RunConfig(run=RunSettings(max_wall_s=20.0, target_return=9.0))
    (tmp_path / "result.json").write_text(json.dumps({"solved": False, "reason": "run.max_wall_s (20) reached"}))
    with pytest.raises(ConfigError, match=naming("run.max_wall_s 20 37")):
        check_limits(before, before, tmp_path)
    check_limits(before, replace(before, run=RunSettings(max_wall_s=40.0)), tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"solved": True, "target_return": 9.0}))
    with pytest.raises(ConfigError, match=naming("run.target_return 9 none")):
        check_limits(before, before, tmp_path)
    for target in (10.0, None):
        check_limits(before, replace(before, run=RunSettings(max_wall_s=20.0, target_return=target)), tmp_path)
