"""What a command line asks for is what is run, and what is written down."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.learn.__main__ import parser
from benchmarks.learn.plan import Plan, make_plan, with_changes
from tests.support.naming import naming
from tests.unit.benchmarks.run_folders import make_run
from tidemill.errors import ConfigError

CONFIG = """\
# A task.
run:
  target_return: 50
  max_wall_s: 300
env:
  id: CartPole-v1
agent:
  algorithm: dqn
"""


@pytest.fixture(name="config")
def fixture_config(tmp_path: Path) -> Path:
    """Return the file of a config."""
    file = tmp_path / "task.yaml"
    file.write_text(CONFIG)
    return file


def plan_of(config: Path, *words: str) -> Plan:
    """Return the plan of a command line; seeds default to one."""
    arguments = parser().parse_args([str(config), *words])
    arguments.seeds = arguments.seeds or [1]
    return make_plan(arguments)


def test_config_without_changes_is_run_as_it_is(config: Path) -> None:
    """Its text, comments included, is the config of the result."""
    plan = plan_of(config)
    assert (plan.name, plan.text) == ("task", CONFIG)
    assert plan.command == f"python -m benchmarks.learn {config} --seeds 1"


def test_command_of_a_plan_gives_the_same_plan(config: Path) -> None:
    """Whoever types the command that a result names gets that result's settings."""
    words = [
        "--seeds",
        "2",
        "3",
        "--name",
        "other",
        "--steps",
        "500",
        "--full",
        "--set",
        "agent.tau=0.5",
        "env.num_envs=3",
    ]
    plan = plan_of(config, *words, "--sb3", "folder", "--peer-every", "70", "--test-episodes", "9")
    program, again = shlex.split(plan.command)[:3], shlex.split(plan.command)[4:]
    assert program == ["python", "-m", "benchmarks.learn"]
    assert plan_of(config, *again) == plan


def test_steps_replace_every_limit_and_full_the_target(config: Path) -> None:
    """The run then ends after so many decisions and for no other reason; the comments stay."""
    plan = plan_of(config, "--steps", "500", "--full", "--set", "agent.double=false")
    run = plan.config.run
    assert (run.max_env_steps, run.max_learner_steps, run.max_wall_s, run.target_return) == (500, 0, 0.0, None)
    assert plan.text.startswith("# A task.\n")
    assert yaml.safe_load(plan.text)["agent"] == {"algorithm": "dqn", "double": False}


def test_setting_that_does_not_exist_is_refused(config: Path) -> None:
    """It is found before anything is run."""
    with pytest.raises(ConfigError, match=r"agent\.duble"):
        plan_of(config, "--set", "agent.duble=false")
    with pytest.raises(ConfigError, match=naming("KEY=VALUE")):
        plan_of(config, "--set", "agent.double")


def test_changes_leave_the_document_as_it_was() -> None:
    """A value under a new section is added to a copy."""
    document = {"run": {"seed": 1}}
    assert with_changes(document, [("run.seed", 2), ("env.id", "X")]) == {"run": {"seed": 2}, "env": {"id": "X"}}
    assert document == {"run": {"seed": 1}}
    with pytest.raises(ConfigError, match=naming("seed")):
        with_changes(document, [("run.seed.low", 2)])


def test_run_of_other_settings_is_told_apart(config: Path, tmp_path: Path) -> None:
    """Seed, name and place may differ; any other setting is named with both values."""
    make_run(tmp_path / "elsewhere" / "seed-7", 7, [(1000, 1.0)])
    plan = plan_of(config, "--set", "agent.algorithm=sac", "env.id=LunarLanderContinuous-v3", "run.max_wall_s=0")
    assert plan.changed_settings(tmp_path / "elsewhere" / "seed-7") == []
    other = replace(plan, config=replace(plan.config, run=replace(plan.config.run, max_wall_s=9.0)))
    assert other.changed_settings(tmp_path / "elsewhere" / "seed-7") == ["run.max_wall_s: 0.0 -> 9.0"]
