"""Sources of a learner besides its own table: tables of demonstrations or of other runs, in fixed fractions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.replay.shares import split_batch
from tidemill.rl.settings.registry import LearnsOnPolicy
from tidemill.rpc.addresses import CLIENT, is_client_address
from tidemill.settings.check import SAFE_NAME, check, is_safe_name, refuse


@dataclass(frozen=True)
class SourceSettings:
    """One of `learner.sources`."""

    fraction: float = 0.5
    """Share of each batch that comes from the source, more than 0 and less than 1."""
    table: str = ""
    """Name of its table. Empty: the name of the source."""
    replay: tuple[str, ...] = ()
    """Addresses of the replay servers with the table. Empty: those of the run, `cluster.replay`."""
    weight: float = 1.0
    """Factor of the importance weights of its items, more than 0."""


def check_each(sources: Mapping[str, SourceSettings]) -> None:
    """Raise ConfigError unless each source has settings that are allowed and the run's own table has a share left."""
    for name, source in sources.items():
        here = f"learner.sources.{name}"
        check(is_safe_name(name), "a name in learner.sources", name, SAFE_NAME)
        check(0 < source.fraction < 1, f"{here}.fraction", source.fraction, "more than 0 and less than 1")
        check(source.weight > 0, f"{here}.weight", source.weight, "more than 0")
        for address in source.replay:
            check(is_client_address(address), f"{here}.replay", address, CLIENT)
    total = sum(source.fraction for source in sources.values())
    allowed = "less than 1; the rest is the run's own table"
    check(total < 1, "the sum of fractions in learner.sources", round(total, 6), allowed)


def fractions_of(sources: Mapping[str, SourceSettings]) -> list[float]:
    """Return the share of the run's own table in each batch, then that of each source."""
    shares = [source.fraction for source in sources.values()]
    return [1.0 - sum(shares), *shares]


def check_sources(settings: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError if there are sources and the sections that a process reads do not allow them."""
    learner, agent, table, run = (getattr(settings, name, None) for name in ("learner", "agent", "table", "run"))
    if learner is None or agent is None or table is None or not learner.sources:
        return
    names, algorithm, problems = ", ".join(learner.sources), agent.algorithm, []
    if isinstance(agent, LearnsOnPolicy):
        problems.append(
            f"learner.sources has {names}, but agent.algorithm {algorithm!r} learns from its own newest items: "
            "sources are for algorithms with replay, such as sac, td3, ddpg and dqn"
        )
    elif table.sampler == "fifo":
        problems.append(f"learner.sources has {names}, but table.sampler is 'fifo'; use uniform or prioritized")
    if run is not None and run.deterministic:
        problems.append(f"learner.sources has {names}, but run.deterministic is set: a run in lock-step has one table")
    launcher = getattr(settings, "launcher", None)
    problems += shares_too_small(learner.sources, agent.batch_size, launcher.learners if launcher else 1)
    refuse(problems)


def shares_too_small(sources: Mapping[str, SourceSettings], batch_size: int, learners: int) -> list[str]:
    """Return a line for each table of whose share a batch has less than an item, or from which a learner draws none."""
    batch = f"a batch of {batch_size} (agent.batch_size)"
    if learners > 1:
        batch = f"the {batch_size // learners} items that each of {learners} learners draws for {batch}"
    shares = fractions_of(sources)
    drawn = split_batch(batch_size // learners, shares)
    return [
        f"learner.sources: {name} has a share of {share:g}, which is less than one item of {batch}"
        for name, share, items in zip(("the run's own table", *sources), shares, drawn, strict=True)
        if share * batch_size < 1.0 - 1e-9 or not items  # what sources leave is rounded
    ]
