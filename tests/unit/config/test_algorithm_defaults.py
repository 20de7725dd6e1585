"""Naming an algorithm, an environment or a preset is enough: what follows from it is set up, and told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support.naming import naming
from tidemill.config.algorithm_defaults import merged
from tidemill.config.load import load, load_config, write_document
from tidemill.config.sections import ReplayConfig, RunConfig
from tidemill.errors import ConfigError
from tidemill.rl.settings.registry import LearnsOnPolicy, algorithms


def _read(*words: str) -> RunConfig:
    return load(RunConfig, words, prog="test", description="")


@pytest.mark.parametrize("algorithm", algorithms())
def test_algorithm_alone_sets_up_a_run(algorithm: str) -> None:
    """On-policy ones synchronously, in full precision, each item once."""
    config = _read("--agent.algorithm", algorithm)
    if isinstance(config.agent, LearnsOnPolicy):
        assert (config.table.sampler, config.learner.updates_per_env_step) == ("fifo", 0)
        assert (config.learner.publish_every, config.learner.publish_half) == (1, False)
        assert config.learner.max_policy_lag == (2 if algorithm == "impala" else 0)
        assert config.agent.batch_size == config.env.num_envs
        assert config.agent.rollout_rows % config.table.chunk_length == 0
    else:
        often = {"sac": 1.0, "td3": 1.0, "ddpg": 1.0}
        assert config.learner.updates_per_env_step == often.get(algorithm, 0.25)


@pytest.mark.parametrize("unroll", [1, 31, 128, 2047, 2048])
@pytest.mark.parametrize("count", ["--actor.count", "--launcher.actors"])
def test_rollout_has_an_item_of_each_environment_of_all_actors(unroll: int, count: str) -> None:
    """Whatever of batch, table and chunks is not said follows."""
    config = _read("--agent.algorithm", "ppo", "--agent.unroll", str(unroll), "--env.num-envs", "6", count, "3")
    agent: Any = config.agent
    assert (agent.batch_size, config.table.min_size, config.table.max_items) == (18, 18, 512)
    assert (unroll + 1) % config.table.chunk_length == 0


def test_what_is_said_stays() -> None:
    """By file or option; and it is refused if it does not fit."""
    config = _read("--agent.algorithm", "ppo", "--agent.batch-size", "8", "--table.max-items", "64")
    agent: Any = config.agent
    assert (agent.batch_size, config.table.min_size, config.table.max_items) == (8, 8, 64)
    with pytest.raises(ConfigError, match=naming("'fifo'")):
        _read("--agent.algorithm", "ppo", "--table.sampler", "uniform")
    assert load_config({"agent": {"algorithm": "ppo"}}).table.sampler == "fifo"


def test_preset_of_another_algorithm_leaves_its_settings_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """Their names and their values are of the other one; a note says so."""
    config = _read("--config", "quickstart", "--agent.algorithm", "dqn", "--env.id", "CartPole-v1")
    assert (config.agent.batch_size, config.table.max_items, config.run.name) == (32, 1_000_000, "quickstart")
    assert "settings of sac are left out for dqn: agent.hidden_sizes, " in capsys.readouterr().err
    assert _read("--config", "cartpole_ppo", "--agent.algorithm", "dqn").table.sampler == "uniform"
    same: Any = _read("--config", "quickstart", "--agent.algorithm", "sac").agent
    assert same.batch_size == 128


def test_note_on_settings_left_out_of_a_run_is_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run's config.yaml has every setting; the note names the first ones and how many more there are."""
    write_document(_read("--config", "quickstart"), tmp_path / "config.yaml")
    _read("--config", str(tmp_path / "config.yaml"), "--agent.algorithm", "td3")
    (note,) = capsys.readouterr().err.splitlines()
    assert "settings of sac are left out for td3: agent." in note
    assert note.endswith(" more")
    assert len(note) < 500


def test_preset_for_another_environment_loses_its_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A return of 200 means nothing there; one's own file is left as it is."""
    config = _read("--config", "quickstart", "--env.id", "BipedalWalker-v3")
    assert (config.run.target_return, config.env.max_episode_steps) == (None, 0)
    assert "settings for LunarLanderContinuous-v3 are left out for BipedalWalker-v3" in capsys.readouterr().err
    assert _read("--config", "quickstart", "--env.id", "X-v0", "--run.target-return", "7").run.target_return == 7
    (tmp_path / "own.yaml").write_text("env: {id: A-v0}\nrun: {target_return: 3}")
    assert _read("--config", str(tmp_path / "own.yaml"), "--env.id", "B-v0").run.target_return == 3


@pytest.mark.parametrize(
    "text, line",
    [
        ("agent: dqn", "agent 'dqn' {algorithm: dqn}"),
        ("run: {seed: 1}\nrun: {name: x}", "'run'"),
        ("run: {seed: 1, seed: 2}", "'seed'"),
        ("run: 3", "run 3"),
        ("agent: {lr: 1}", "'agent.lr' 'agent.learning_rate'"),
        ("run: {total_timesteps: 1}", "'run.total_timesteps' 'run.max_env_steps'"),
        ("run: {max_env_steps: 1.5}", "run.max_env_steps 1.5"),
    ],
)
def test_wrong_file_is_answered_in_a_line(tmp_path: Path, text: str, line: str) -> None:
    """Never by a traceback, and never by a part that is lost."""
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=naming(line)):
        _read("--config", str(tmp_path / "x.yaml"))


def test_numbers_are_written_as_people_write_them(tmp_path: Path) -> None:
    """1e5 is a whole number where one is wanted, and a number where any is."""
    (tmp_path / "x.yaml").write_text("run: {max_env_steps: 1e5, max_wall_s: 2e2}\nagent: {learning_rate: 3E-4}")
    config = _read("--config", str(tmp_path / "x.yaml"))
    agent: Any = config.agent
    assert (config.run.max_env_steps, config.run.max_wall_s, agent.learning_rate) == (100_000, 200.0, 3e-4)


@pytest.mark.parametrize("algorithm", ["dqn", "r2d2"])
def test_single_environment_explores_less_and_less(algorithm: str) -> None:
    """The first epsilon of a ladder is 0.4, and would be for ever."""
    alone: Any = _read("--agent.algorithm", algorithm, "--env.num-envs", "1").agent
    assert alone.exploration == "schedule"
    several: Any = _read("--agent.algorithm", algorithm, "--env.num-envs", "1", "--launcher.actors", "2").agent
    assert several.exploration == "ladder"
    simulators = ("--launcher.inference", "1", "--inference.simulators", "8")
    clients: Any = _read("--agent.algorithm", algorithm, "--launcher.actors", "0", *simulators).agent
    assert clients.exploration == "schedule"
    beside_actors: Any = _read("--agent.algorithm", algorithm, *simulators).agent
    assert beside_actors.exploration == "ladder"


@pytest.mark.parametrize("algorithm", ["ppo", "impala", "pqn", "r2d2"])
def test_refusal_of_lock_step_names_the_algorithms_that_can(algorithm: str) -> None:
    """It is not found out by trying."""
    with pytest.raises(ConfigError, match=naming("d4pg ddpg dqn sac sac_discrete td3")):
        _read("--agent.algorithm", algorithm, "--run.deterministic", "--run.max-learner-steps", "9")


def test_preset_for_another_game_keeps_the_preprocessing() -> None:
    """Only the target was the other game's."""
    pong, breakout = (_read("--config", "rainbow_pong", *words) for words in ((), ("--env.id", "ALE/Breakout-v5")))
    assert breakout.run.target_return is None
    assert dataclasses.replace(breakout.env, id=pong.env.id) == pong.env


def test_process_without_the_agent_does_not_need_its_module(tmp_path: Path) -> None:
    """The replay service stores whatever an algorithm learns from."""
    (tmp_path / "x.yaml").write_text("agent: {algorithm: nowhere.to_be_found}")
    load(ReplayConfig, ["--config", str(tmp_path / "x.yaml")], prog="test", description="")


def test_number_in_scientific_notation_counts_in_defaults() -> None:
    """As it does in the setting itself."""
    assert _read("--agent.algorithm", "ppo", "--env.num-envs", "1e1") == _read(
        "--agent.algorithm", "ppo", "--env.num-envs", "10"
    )


def test_mappings_are_merged_and_everything_else_is_replaced() -> None:
    """Neither argument is changed."""
    below: dict[str, Any] = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert merged(below, {"a": {"c": [2], "e": 3}, "d": {"f": 4}}) == {"a": {"b": 1, "c": [2], "e": 3}, "d": {"f": 4}}
    assert below == {"a": {"b": 1, "c": [1]}, "d": 2}
