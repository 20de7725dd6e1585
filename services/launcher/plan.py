"""`tidemill plan`: how many processes of each kind fill a machine, by what one core was measured to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from tidemill.config.check import check
from tidemill.services.launcher import rates

_ABOUT = """Say how many actors, learners, decoder threads and replay shards a machine should run, and what comes of it.

The figures are of one core of the machine that benchmarks/results was measured on; a faster core does more. What
was not measured must be given: on GPUs that is --updates-per-s."""


@dataclass(frozen=True)
class PlanOptions:
    """A machine and a run."""

    cores: int
    """CPU cores, at least 2."""
    env: str
    """Environment, e.g. `ALE/Pong-v5`."""
    gpus: int = 0
    """GPUs, each with a learner of its own."""
    batch_size: int = 256
    """Items of an update, all learners together."""
    updates_per_env_step: float = 0.25
    """Gradient steps for each agent decision, as `learner.updates_per_env_step`."""
    case: str = ""
    """Network, by the name of its case in the learner's benchmark; empty: `nature_dueling_dqn` for Atari, else SAC."""
    updates_per_s: float = 0.0
    """Updates a second of one learner that never waits; 0 takes the measured rate of a core."""
    actor_steps_per_s: float = 0.0
    """Env steps a second of one actor on one core; 0 takes the measured rate."""

    def __post_init__(self) -> None:
        check(self.cores >= 2, "cores", self.cores, "at least 2")
        check(self.gpus >= 0, "gpus", self.gpus, "0 or more")
        check(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        check(self.updates_per_env_step > 0, "updates_per_env_step", self.updates_per_env_step, "more than 0")
        needs = self.gpus == 0 or self.updates_per_s > 0
        check(needs, "updates_per_s", self.updates_per_s, "given for GPUs: no GPU's rate is in benchmarks/results")


@dataclass(frozen=True)
class Rates:
    """What one core does in a second, or one learner."""

    actor: float
    """Env steps of an actor."""
    update: float
    """Updates of one learner: on a CPU of its core, decoding included."""
    decode: float
    """Transitions that one core samples and decodes; a learner on a CPU has that in its `update`."""
    shard_inserts: float
    """Transitions that one replay shard was seen to insert while it was sampled."""
    shard_samples: float
    """Transitions that one replay shard was seen to give at the same time."""


@dataclass(frozen=True)
class Plan:
    """What to run, and what comes of it."""

    actors: int
    learners: int
    decode_threads: int
    """For each learner."""
    shards: int
    env_steps_per_s: float
    updates_per_s: float
    limit: str
    """What holds it back."""

    def lines(self) -> list[str]:
        """Return the plan for a reader, with the settings it means."""
        return [
            f"{self.actors} actors                   --launcher.actors {self.actors}",
            f"{self.learners} learners                 --launcher.learners {self.learners}",
            f"{self.decode_threads} decoder threads a learner --learner.decode-threads {self.decode_threads}",
            f"{self.shards} replay shards            --replay.shards {self.shards}",
            f"about {self.env_steps_per_s:,.0f} env steps/s and {self.updates_per_s:,.0f} updates/s; "
            f"{self.limit} holds it back",
        ]


def make_plan(options: PlanOptions, rates_: Rates) -> Plan:
    """Return the plan that keeps every core busy.

    Every learner has a core for its training thread, which on a CPU decodes and updates, and on a GPU only launches. Of
    the others each env step takes a part for the actor and the insert, and for a learner on a GPU a part for each
    transition that is sampled for it.
    """
    learners = max(options.gpus, 1)
    sampled = options.updates_per_env_step * options.batch_size  # transitions for each env step
    decode = sampled / rates_.decode if options.gpus else 0.0
    by_cores = (options.cores - learners) / (1 / rates_.actor + 1 / rates_.shard_inserts + decode)
    by_learner = learners * rates_.update / options.updates_per_env_step
    env_steps = min(by_cores, by_learner)
    return Plan(
        actors=max(math.ceil(env_steps / rates_.actor), 1),
        learners=learners,
        decode_threads=max(math.ceil(env_steps * decode / learners), 1),
        shards=math.ceil(max(env_steps / rates_.shard_inserts, env_steps * sampled / rates_.shard_samples)),
        env_steps_per_s=env_steps,
        updates_per_s=env_steps * options.updates_per_env_step,
        limit="the learner" if by_learner < by_cores else "the number of cores",
    )


def measured_rates(options: PlanOptions) -> Rates:
    """Return the rates in benchmarks/results, and what the options give instead.

    What was measured of the replay service is of images. For vectors, which are a hundred times smaller, sampling never
    asks for a second shard here.

    Raises:
        FatalError: Something that is needed was not measured.
    """
    case = options.case or ("nature_dueling_dqn" if options.env.startswith("ALE/") else "sac_256_256")
    return Rates(
        actor=options.actor_steps_per_s or rates.actor_steps_per_s(options.env),
        update=options.updates_per_s or rates.updates_per_core_s(case, options.batch_size),
        decode=rates.replay_per_s("sample decoded, prioritized with updates, batch 256"),
        shard_inserts=rates.replay_per_s("mixed, inserted"),
        shard_samples=rates.replay_per_s("mixed, sampled") if options.env.startswith("ALE/") else math.inf,
    )


def plan(argv: Sequence[str]) -> int:
    """Print the plan for a machine; return the exit code."""
    options = tyro.cli(PlanOptions, prog="tidemill plan", description=_ABOUT, args=list(argv))
    print("\n".join(make_plan(options, measured_rates(options)).lines()))
    return 0
