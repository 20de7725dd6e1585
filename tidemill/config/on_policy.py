"""Settings of table, learner and actors that learning from each item once needs."""

from __future__ import annotations

from typing import Any

from tidemill.config.services import LearnerSettings
from tidemill.config.table import TableSettings
from tidemill.rl.settings.registry import LearnsOnPolicy
from tidemill.settings.check import check_that


def check_on_policy(settings: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError unless the sections of a process that it reads fit its algorithm.

    The number of environments is known where the actors' settings are.
    """
    agent, table, learner = (getattr(settings, name, None) for name in ("agent", "table", "learner"))
    if agent is None or table is None or learner is None:
        return
    if not isinstance(agent, LearnsOnPolicy):
        _check_queue(agent, table, learner)
        check_that(
            learner.max_policy_lag < 0,
            f"learner.max_policy_lag is {learner.max_policy_lag}, but agent.algorithm {agent.algorithm!r} learns from "
            "items of any age: leave it at -1",
        )
        return
    _check_table(agent, table, learner)
    if learner.max_policy_lag < 0:
        return
    _check_order(learner)
    if (actor := getattr(settings, "actor", None)) is not None:
        launched = getattr(getattr(settings, "launcher", None), "actors", 1)
        windows_per_version(agent, learner, max(actor.count, launched), settings.env.num_envs)


def _check_queue(agent: Any, table: TableSettings, learner: LearnerSettings) -> None:  # noqa: ANN401 - any algorithm's
    most = 1 / (agent.batch_size * agent.window(1).stride)
    check_that(
        table.sampler != "fifo" or learner.updates_per_env_step <= most,
        f"learner.updates_per_env_step is {learner.updates_per_env_step:g}, but table.sampler is 'fifo', which gives "
        f"each item once: at most {most:g}, or 0 for as many updates as there are items",
    )
    check_that(
        table.sampler != "fifo" or agent.batch_size <= table.max_items,
        f"table.max_items is {table.max_items}, but table.sampler is 'fifo', which gives each item once, and an update "
        f"takes {agent.batch_size} (agent.batch_size): raise table.max_items, or lower agent.batch_size",
    )


def windows_per_version(agent: Any, learner: LearnerSettings, actors: int, num_envs: int) -> int:  # noqa: ANN401 - as below
    """Return how many windows of each environment of each actor the learner uses up between two versions.

    Raises:
        ConfigError: It is not a whole number: some items would have to wait for the next version.
    """
    items: int = agent.batch_size * learner.publish_every
    check_that(
        items % (actors * num_envs) == 0,
        f"agent.batch_size ({agent.batch_size}) * learner.publish_every ({learner.publish_every}) is {items} items per "
        f"version, must be a multiple of the {actors * num_envs} environments of all actors ({actors} by "
        f"actor.count or launcher.actors, each with env.num_envs {num_envs}) to hold learner.max_policy_lag",
    )
    return items // (actors * num_envs)


def _check_table(agent: Any, table: TableSettings, learner: LearnerSettings) -> None:  # noqa: ANN401 - both protocols at once
    name = f"agent.algorithm {agent.algorithm!r}"
    check_that(
        table.sampler == "fifo",
        f"table.sampler is {table.sampler!r}, but {name} learns from each item once, in their order: set it to 'fifo'",
    )
    check_that(
        learner.updates_per_env_step == 0,
        f"learner.updates_per_env_step is {learner.updates_per_env_step:g}, but {name} makes as many updates as there "
        "are items: set it to 0",
    )
    check_that(
        agent.rollout_rows % table.chunk_length == 0,
        f"table.chunk_length is {table.chunk_length}, but must divide agent.unroll + 1 ({agent.rollout_rows}), so that "
        "an item is sent as soon as it is complete",
    )
    check_that(
        table.min_size <= agent.batch_size,
        f"table.min_size is {table.min_size}, but {name} starts with its first batch: set it to agent.batch_size "
        f"({agent.batch_size}) or less",
    )
    check_that(
        table.max_items >= 4 * agent.batch_size,
        f"table.max_items is {table.max_items}, but must be at least four batches ({4 * agent.batch_size}): actors "
        "wait when it is half full",
    )


def _check_order(learner: LearnerSettings) -> None:
    for name in ("batches_per_sample", "decode_threads"):
        value = getattr(learner, name)
        check_that(
            value <= 1,
            f"learner.{name} is {value}, but must be 1 where learner.max_policy_lag is set: items are used in their "
            "order",
        )
