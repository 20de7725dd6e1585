"""Settings of a learner that several processes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidemill.config.sources import SourceSettings, shares_too_small
from tidemill.errors import ConfigError, described
from tidemill.rl.settings.registry import AgentConfig
from tidemill.settings.check import check_that, collecting, refuse


def check_learners(settings: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError if several learners are to be started and cannot share the batch or the device."""
    launcher = getattr(settings, "launcher", None)
    if launcher is None or launcher.learners == 1:
        return
    problems: list[str] = []
    with collecting(problems):
        check_device(settings.learner.device, launcher.learners)
    with collecting(problems):
        local_batch_size(settings.agent, settings.learner.sources, launcher.learners)
    with collecting(problems):
        check_queue(settings, launcher.learners)
    refuse(problems)


def check_device(name: str, learners: int) -> None:
    """Raise ConfigError if several learners would share the one GPU that `learner.device` names."""
    check_that(
        learners == 1 or not name.startswith("cuda:"),
        f"learner.device is {name!r}, which {learners} learners cannot share; use auto or cuda",
    )


def check_queue(settings: Any, learners: int) -> None:  # noqa: ANN401 - of the launcher or of a learner
    """Raise ConfigError if several learners would wait for ever for items that another has drawn.

    With a bound on the policy lag actors make no more items than the next update needs. Each learner divides its draw
    over the shards by what it last heard of them, and behind a DNS name it also waits until it sees `table.min_size`.
    """
    cluster, lag = settings.cluster, settings.learner.max_policy_lag
    if learners == 1 or lag < 0:
        return
    shards = max(cluster.shard_count, settings.replay.shards if hasattr(settings, "replay") else 1)
    check_that(
        shards == 1,
        f"there are {shards} replay shards, but {learners} learners that hold learner.max_policy_lag {lag} need a "
        "single one: set replay.shards to 1, which a run with a log cannot change (in containers see 'One shard' in "
        "docs/operations.md), or learner.max_policy_lag to -1",
    )
    items = settings.agent.batch_size // learners
    check_that(
        not cluster.replay[0].startswith("dns:") or settings.table.min_size <= items,
        f"table.min_size is {settings.table.min_size}, but must be at most {items}, the share of each of {learners} "
        f"learners in agent.batch_size, with learner.max_policy_lag {lag} and {cluster.replay[0]}",
    )


def local_batch_size(agent: AgentConfig, sources: Mapping[str, SourceSettings], learners: int) -> int:
    """Return the number of items of each update that one of several learners takes.

    Raises:
        ConfigError: They cannot share a batch evenly, or a share is too small for the other settings: PPO's
            minibatches, or a table of `learner.sources`, would have less than an item each.
    """
    if agent.batch_size % learners:
        raise ConfigError(
            f"agent.batch_size is {agent.batch_size}, which {learners} learners cannot share evenly: "
            f"choose a multiple of {learners}"
        )
    items = int(agent.batch_size) // learners
    try:
        replace(agent, batch_size=items)  # type: ignore[type-var] # every algorithm has a dataclass
    except ConfigError as error:
        raise ConfigError(f"{learners} learners take {items} of agent.batch_size each, and then {error}") from None
    except Exception as error:  # whatever a user's class raises
        raise ConfigError(
            f"{learners} learners take {items} of agent.batch_size each, which {type(agent).__name__} refuses: "
            f"{described(error)}"
        ) from error
    refuse(shares_too_small(sources, agent.batch_size, learners))
    return items
