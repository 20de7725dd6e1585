"""The rounds of a run in lock-step, and which settings allow it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.naming import naming
from tidemill.config.load import load, load_config
from tidemill.config.lock_step import LockStep
from tidemill.config.sections import ActorConfig, LearnerConfig
from tidemill.errors import ConfigError


def settings(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a deterministic run with some changed."""
    fitting: dict[str, dict[str, Any]] = {
        "run": {"deterministic": True, "round_steps": 32},
        "env": {"id": "CartPole-v1", "num_envs": 4},
        "agent": {"algorithm": "dqn", "network": "mlp"},
        "learner": {"updates_per_env_step": 0.25},
    }
    return {name: fitting.get(name, {}) | sections.get(name, {}) for name in (*fitting, *sections)}


def test_rounds_follow_each_other() -> None:
    """Two actors of three environments, ten steps a round: 60 steps, of which the second actor stores the last 30."""
    rounds = LockStep(round_steps=10, num_envs=3, actors=2, updates=15, warm_up=2)
    assert (rounds.round_size, rounds.actor_share) == (60, 30)
    assert [rounds.turn(1, 0), rounds.turn(1, 1), rounds.turn(2, 0), rounds.turn(3, 1)] == [0, 30, 60, 150]
    assert [rounds.updates_after(number) for number in range(-1, 5)] == [0, 0, 0, 0, 15, 30]
    assert [rounds.round_of_update(steps) for steps in (0, 14, 15, 30)] == [3, 3, 4, 5]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"table": {"sampler": "prioritized"}},
        {"agent": {"algorithm": "sac", "network": None}, "env": {"num_envs": 8}},
    ],
)
def test_settings_that_fit_are_taken(changed: dict[str, dict[str, Any]]) -> None:
    """Uniform and prioritized tables, and every algorithm that learns from single transitions."""
    fitting = settings(**changed)
    fitting["agent"] = {name: value for name, value in fitting["agent"].items() if value is not None}
    assert load_config(fitting).run.deterministic


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"run": {"target_return": 475.0}}, "run.target_return 475.0 run.deterministic none"),
        ({"run": {"max_wall_s": 60.0}}, "run.max_wall_s 60.0 0"),
        ({"run": {"max_env_steps": 9}}, "run.max_env_steps 9 0"),
        ({"run": {"round_steps": 40}}, "run.round_steps 40 table.chunk_length 16"),
        ({"run": {"round_steps": 0}}, "run.round_steps 0 1"),
        ({"learner": {"updates_per_env_step": 0.3}}, "0.3 128 38.4"),
        ({"learner": {"updates_per_env_step": 0}}, "0 1"),
        ({"learner": {"threads": 0}}, "learner.threads 0 1"),
        ({"learner": {"threads": -1}}, "learner.threads -1 1"),
        ({"launcher": {"inference": 1}}, "run.deterministic"),
        ({"cluster": {"inference": ["127.0.0.1:7406"]}}, "run.deterministic"),
        ({"env": {"isolate": True}}, "env.isolate run.deterministic"),
        ({"table": {"sampler": "fifo"}}, "table.sampler 'fifo' 'uniform' 'prioritized'"),
        ({"agent": {"algorithm": "r2d2"}}, "agent.algorithm 'r2d2'"),
        ({"agent": {"algorithm": "sac", "lstm_size": 8}}, "agent.lstm_size 8 'sac' 0"),
        ({"agent": {"algorithm": "td3", "lstm_size": 8, "period": 1}}, "agent.lstm_size 8 'td3' 0"),
        ({"replay": {"shards": 2}}, "2 replay.shards 1"),
        ({"cluster": {"replay": ["a:1", "b:1"]}}, "2 a:1 b:1"),
        ({"cluster": {"replay": ["dns:///a:1"]}}, "dns:///a:1 run.deterministic"),
        ({"launcher": {"learners": 2}}, "launcher.learners 2 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changed: dict[str, dict[str, Any]], message: str) -> None:
    """The message names the setting, its value and what is allowed."""
    if changed.get("agent"):
        changed = changed | {"agent": {**changed["agent"], "network": None}}
    document = settings(**changed)
    document["agent"] = {name: value for name, value in document["agent"].items() if value is not None}
    with pytest.raises(ConfigError, match=naming(message)):
        load_config(document)


@pytest.mark.parametrize("file", [False, True])
def test_number_of_threads_does_not_depend_on_the_machine(file: bool, tmp_path: Path) -> None:
    """Results would depend on it as well. A number that is given stays."""
    path = tmp_path / "run.yaml"
    path.write_text("run: {deterministic: true}\n", encoding="utf-8")
    arguments = ["--config", str(path)] if file else ["--run.deterministic", "true"]
    for more, threads in (([], 1), (["--learner.threads", "2"], 2)):
        loaded = load(LearnerConfig, [*arguments, *more], prog="tidemill", description="")
        assert loaded.learner.threads == threads
    assert load(LearnerConfig, [], prog="tidemill", description="").learner.threads == -1


def test_on_policy_algorithm_is_refused() -> None:
    """What learns from each item once has no table to draw from."""
    document = settings(
        agent={"algorithm": "ppo", "unroll": 31},
        table={"sampler": "fifo", "min_size": 4, "max_items": 4096},
        learner={"updates_per_env_step": 0},
    )
    del document["agent"]["network"]
    with pytest.raises(ConfigError, match=naming("agent.algorithm 'ppo' run.deterministic sac")):
        load_config(document)


@pytest.mark.parametrize("kind", [ActorConfig, LearnerConfig])
def test_process_checks_the_sections_it_reads(kind: type[Any]) -> None:
    """Each process of a cluster by hand refuses what the whole would not be."""
    arguments = ["--run.deterministic", "true", "--actor.count", "3", "--run.max_env_steps", "5"]
    with pytest.raises(ConfigError, match=naming("max_env_steps 5")):
        load(kind, arguments, prog="tidemill", description="")
    with pytest.raises(ConfigError, match=naming("actors 3")):
        load(kind, [*arguments[:4], "--learner.updates_per_env_step", "0.01"], prog="tidemill", description="")
