"""Settings that do not fit an algorithm that learns from each item once are refused, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.naming import naming
from tidemill.config.load import load, load_config
from tidemill.config.sections import ActorConfig
from tidemill.errors import ConfigError


def settings(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a synchronous run of PPO with some changed."""
    fitting: dict[str, dict[str, Any]] = {
        "env": {"id": "CartPole-v1", "num_envs": 4},
        "agent": {"algorithm": "ppo", "unroll": 31},
        "table": {"sampler": "fifo", "min_size": 4, "max_items": 64, "chunk_length": 16},
        "learner": {"updates_per_env_step": 0, "publish_every": 1, "max_policy_lag": 0},
    }
    return {name: fitting.get(name, {}) | sections.get(name, {}) for name in (*fitting, *sections)}


@pytest.mark.parametrize("algorithm", ["ppo", "impala", "pqn"])
def test_settings_that_fit_are_taken(algorithm: str) -> None:
    """With a bound and without one."""
    for lag in (-1, 0, 3):
        fitting = settings(agent={"algorithm": algorithm, "batch_size": 4}, learner={"max_policy_lag": lag})
        assert load_config(fitting).learner.max_policy_lag == lag


@pytest.mark.parametrize(
    "changed,message",
    [
        (
            {"table": {"sampler": "prioritized"}},
            "table.sampler 'prioritized' 'ppo' 'fifo'",
        ),
        ({"learner": {"updates_per_env_step": 0.5}}, "updates_per_env_step 0.5 0"),
        ({"table": {"chunk_length": 24}}, "chunk_length 24 agent.unroll 32"),
        ({"table": {"min_size": 5}}, "min_size 5 agent.batch_size 4"),
        ({"table": {"max_items": 15}}, "max_items 15 16"),
        ({"learner": {"decode_threads": 2}}, "decode_threads 2 1"),
        ({"learner": {"batches_per_sample": 2}}, "batches_per_sample 2 1"),
        (
            {"env": {"num_envs": 3}, "agent": {"batch_size": 4}},
            "4 3",
        ),
        (
            {"launcher": {"actors": 2}, "agent": {"batch_size": 4}},
            "8 2 4 launcher.actors env.num_envs",
        ),
        ({"actor": {"count": 3}, "agent": {"batch_size": 4}}, "12 3 4 actor.count env.num_envs"),
        ({"agent": {"algorithm": "dqn", "unroll": None}}, "max_policy_lag 0 agent.algorithm 'dqn'"),
        ({"learner": {"max_policy_lag": -2}}, "max_policy_lag -2 -1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changed: dict[str, dict[str, Any]], message: str) -> None:
    """One line names the setting, its value and the remedy."""
    document = settings(**changed)
    if document["agent"]["unroll"] is None:
        del document["agent"]["unroll"]
    with pytest.raises(ConfigError, match=naming(message)):
        load_config(document)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"replay": {"shards": 2}}, "2 replay shards 2 learners max_policy_lag 0 replay.shards 1 -1"),
        ({"cluster": {"replay": ["a:1", "b:1"]}}, "2 replay shards 2 learners"),
        ({"cluster": {"replay": ["dns:///replay:1"]}}, "table.min_size 4 2 2 agent.batch_size dns:///replay:1"),
    ],
)
def test_learners_that_would_wait_for_each_others_items_are_refused(
    changed: dict[str, dict[str, Any]], message: str
) -> None:
    """Before anything starts; `test_learner_group.py` has the ranks, where torchrun says how many there are."""
    document = settings(agent={"batch_size": 4}, **changed)
    assert load_config(document).launcher.learners == 1
    with pytest.raises(ConfigError, match=naming(message)):
        load_config(document | {"launcher": {"learners": 2}})
    unbounded = document | {"launcher": {"learners": 2}, "learner": document["learner"] | {"max_policy_lag": -1}}
    assert load_config(unbounded).launcher.learners == 2


def test_command_line_is_checked_as_a_whole() -> None:
    """An actor that is started by hand learns the same, once all of its settings are known."""
    words = ["--agent.algorithm", "ppo", "--table.sampler", "uniform"]
    with pytest.raises(ConfigError, match=naming("'fifo'")):
        load(ActorConfig, words, prog="actor", description="")


def test_queue_needs_the_items_of_one_batch() -> None:
    """A call draws one from a queue, whatever `learner.batches_per_sample` says."""
    queue = {"sampler": "fifo", "max_items": 300, "min_size": 100}
    learner = {"updates_per_env_step": 0, "batches_per_sample": 8}
    config = load_config({"agent": {"algorithm": "dqn", "batch_size": 256}, "table": queue, "learner": learner})
    assert config.table.max_items == 300


def test_ratio_that_a_queue_cannot_hold_is_refused() -> None:
    """An item of other algorithms makes at most 1 / batch_size updates; R2D2's come every `period` decisions."""
    queue = {
        "env": {"id": "CartPole-v1"},
        "table": {"sampler": "fifo"},
        "agent": {"algorithm": "dqn", "batch_size": 32},
    }
    assert load_config(queue | {"learner": {"updates_per_env_step": 1 / 32}}).table.sampler == "fifo"
    with pytest.raises(ConfigError, match=naming("learner.updates_per_env_step 0.25 table.sampler 'fifo' 0.03125")):
        load_config(queue | {"learner": {"updates_per_env_step": 0.25}})
    queue["agent"] = {"algorithm": "r2d2", "batch_size": 32, "period": 2}
    with pytest.raises(ConfigError, match=naming("0.03125 'fifo' 0.015625")):
        load_config(queue | {"learner": {"updates_per_env_step": 1 / 32}})
