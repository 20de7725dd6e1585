"""Rounds of a run in lock-step: when each service plays, stores, trains and publishes; the settings that allow it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.config.run import ClusterSettings, RunSettings
from tidemill.config.services import ActorSettings, LauncherSettings, LearnerSettings
from tidemill.config.table import TableSettings
from tidemill.errors import ConfigError
from tidemill.rl.settings.registry import AgentConfig, LearnsOnPolicy, algorithms, config_class
from tidemill.settings.check import check_that

_NOT_AN_INTEGER = 1e-6  # what rounding may add to a product of settings


@dataclass(frozen=True)
class LockStep:
    """A run's rounds, counted from 1. The steps stored by all actors are its clock.

    In round r each environment plays `round_steps` steps; the actors store them one after the other in the order of
    their index; then the learner makes `updates` updates on all that is stored, and publishes. The first
    `warm_up` rounds are without updates. Actors play a round while the learner trains on the one before: the
    parameters they play round r with are those after the training of round r - 2.

    Attributes:
        round_steps: Steps of each environment in a round.
        num_envs: Environments of each actor.
        actors: Actors.
        updates: Updates in a round.
        warm_up: Rounds before the first update.
    """

    round_steps: int
    num_envs: int
    actors: int
    updates: int
    warm_up: int

    @property
    def round_size(self) -> int:
        """Steps of all environments in a round."""
        return self.actors * self.actor_share

    @property
    def actor_share(self) -> int:
        """Steps of one actor's environments in a round."""
        return self.round_steps * self.num_envs

    def turn(self, number: int, actor_index: int) -> int:
        """Return how many steps are stored when it is an actor's turn to store a round."""
        return (number - 1) * self.round_size + actor_index * self.actor_share

    def env_steps(self, number: int, steps: int) -> int:
        """Return the steps of all actors after so many steps of each environment in a round.

        It counts every row, also one with an episode's last observation, which is not an agent decision.
        """
        return (number - 1) * self.round_size + steps * self.num_envs * self.actors

    def updates_after(self, number: int) -> int:
        """Return the updates made by the end of a round; 0 for rounds before the first."""
        return self.updates * max(number - self.warm_up, 0)

    def round_of_update(self, learner_steps: int) -> int:
        """Return the round in which the update after so many of them is made."""
        return self.warm_up + learner_steps // self.updates + 1


def lock_step_of(
    run: RunSettings, table: TableSettings, learner: LearnerSettings, num_envs: int, actors: int
) -> LockStep:
    """Return the rounds of a run.

    Raises:
        ConfigError: The settings give no whole number of updates or chunks to a round.
    """
    steps = run.round_steps * num_envs * actors
    updates = learner.updates_per_env_step * steps
    if run.round_steps % table.chunk_length:
        raise ConfigError(
            f"run.round_steps is {run.round_steps}, but must be a multiple of table.chunk_length "
            f"({table.chunk_length}) with run.deterministic: a round is stored in whole chunks"
        )
    if round(updates) < 1 or abs(updates - round(updates)) > _NOT_AN_INTEGER * updates:
        raise ConfigError(
            f"learner.updates_per_env_step ({learner.updates_per_env_step:g}) times the {steps} steps of a round "
            f"(run.round_steps {run.round_steps}, env.num_envs {num_envs}, actors {actors}) is {updates:g}, but must "
            "be a whole number of updates, at least 1, with run.deterministic: choose another run.round_steps"
        )
    return LockStep(run.round_steps, num_envs, actors, round(updates), -(-table.min_size // steps))


def history_file(run: RunSettings, actor_id: str) -> Path:
    """Return the file that an actor adds each round that it has played to, and plays again after a restart."""
    return run.folder / "lock_step" / f"{actor_id}.history"


def check_lock_step(settings: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError if a run is to be deterministic and the sections that a process reads do not allow it."""
    run = getattr(settings, "run", None)
    if run is None or not run.deterministic:
        return
    _check_limits(run)
    env = getattr(settings, "env", None)
    check_that(
        env is None or not env.isolate,
        "env.isolate is true, but must be false with run.deterministic, whose actors are restarted whole",
    )
    sections = ("agent", "cluster", "table", "learner", "launcher", "actor")
    agent, cluster, table, learner, launcher, actor = (getattr(settings, name, None) for name in sections)
    if agent is not None:
        _check_agent(agent)
    if cluster is not None:
        _check_cluster(cluster, launcher, getattr(settings, "replay", None))
    if table is not None:
        check_that(
            table.sampler != "fifo",
            "table.sampler is 'fifo', but run.deterministic needs 'uniform' or 'prioritized'",
        )
    if learner is not None:
        check_that(
            learner.threads >= 1,
            f"learner.threads is {learner.threads}, but must be at least 1 with run.deterministic",
        )
    if learner is not None and table is not None and actor is not None:
        launched = getattr(launcher, "actors", 1)
        if launcher is not None:
            _check_indices(actor, launched)
        lock_step = lock_step_of(run, table, learner, settings.env.num_envs, max(actor.count, launched))
        played = lock_step.warm_up * run.round_steps
        check_that(
            not table.hindsight or played > table.hindsight_steps,
            f"table.min_size is {table.min_size}: each environment plays {played} steps before the first gradient "
            f"step, but must play more than table.hindsight_steps ({table.hindsight_steps}) with run.deterministic",
        )


def _check_indices(actor: ActorSettings, launched: int) -> None:
    first, count = actor.index or 0, max(actor.count, launched)
    check_that(
        not launched or first + launched <= count,
        f"actor.index is {first}, but with run.deterministic launcher.actors ({launched}) actors counted from it must "
        f"stay below actor.count ({count}): leave out actor.index, or set actor.count to {first + launched}",
    )


def _check_limits(run: RunSettings) -> None:
    for name, off in (("target_return", None), ("max_env_steps", 0), ("max_wall_s", 0.0)):
        value = getattr(run, name)
        check_that(
            value == off,
            f"run.{name} is {value}, but with run.deterministic only run.max_learner_steps ends a run: leave it out, "
            "or set it to " + ("none" if off is None else "0"),
        )


def _check_agent(agent: Any) -> None:  # noqa: ANN401 - the settings of any algorithm
    reason = "each item once" if isinstance(agent, LearnsOnPolicy) else "sequences"
    if not _may_lock_step(agent):
        allowed = ", ".join(name for name in algorithms() if _may_lock_step(config_class(name)()))
        if agent.algorithm in allowed.split(", ") and (lstm_size := getattr(agent, "lstm_size", 0)):
            raise ConfigError(
                f"agent.lstm_size is {lstm_size}, with which {agent.algorithm!r} learns from sequences, but must be 0 "
                "with run.deterministic"
            )
        raise ConfigError(
            f"agent.algorithm is {agent.algorithm!r}, which learns from {reason}; run.deterministic allows those that "
            f"draw single transitions from a replay table: {allowed}"
        )


def _may_lock_step(agent: AgentConfig) -> bool:
    window = agent.window(1)
    return not isinstance(agent, LearnsOnPolicy) and window.stride == 1 and window.history == 0


def _check_cluster(cluster: ClusterSettings, launcher: LauncherSettings | None, replay: Any) -> None:  # noqa: ANN401
    shards = max(cluster.shard_count, getattr(replay, "shards", 1))
    check_that(
        shards == 1 and not cluster.replay[0].startswith("dns:"),
        f"there are {shards} replay shards at {', '.join(cluster.replay)}, but run.deterministic allows one server "
        "(replay.shards 1, a single address in cluster.replay)",
    )
    served = bool(cluster.inference) or getattr(launcher, "inference", 0) > 0
    check_that(
        not served,
        "launcher.inference or cluster.inference is set, but not allowed with run.deterministic: leave both out",
    )
    learners = getattr(launcher, "learners", 1)
    check_that(learners == 1, f"launcher.learners is {learners}, but must be 1 with run.deterministic")
