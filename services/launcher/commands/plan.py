"""`tidemill plan`: how many processes of each kind fill a machine, computed from the measured rates of one core."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tyro

from tidemill.config.check import check
from tidemill.errors import FatalError

RATES_FILE = Path(__file__).with_name("measured_rates.json")
"""Rates measured by the benchmarks of the repository; written by scripts/plan_rates.py from benchmarks/results."""

_ABOUT = """Print how many actors, learners, decoder threads and replay shards fill a machine, and the rates to expect.

The estimate rests on rates that were measured on one core of an AMD EPYC (benchmarks/results of the repository); a
faster core does more. Pass what was not measured: for GPUs that is --updates-per-s."""


@dataclass(frozen=True)
class PlanOptions:
    """A machine and a run."""

    cores: int
    """CPU cores, at least 2."""
    env: str
    """Environment, e.g. `ALE/Pong-v5`."""
    gpus: int = 0
    """GPUs; each gets one learner."""
    batch_size: int = 256
    """Items per update, summed over all learners."""
    updates_per_env_step: float = 0.25
    """Updates per agent decision, as `learner.updates_per_env_step`."""
    case: str = ""
    """Network, by its name in the learner's benchmark; empty: `nature_dueling_dqn` for Atari, else `sac_256_256`."""
    updates_per_s: float = 0.0
    """Updates per second of one learner that never waits for data; 0 takes the measured rate of one core."""
    actor_steps_per_s: float = 0.0
    """Env steps per second of one actor on one core; 0 takes the measured rate."""
    mirror: bool = True
    """Whether learners mirror their table, as they do by default where they have memory for it."""

    def __post_init__(self) -> None:
        check(self.cores >= 2, "cores", self.cores, "at least 2")
        check(self.gpus >= 0, "gpus", self.gpus, "0 or more")
        check(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        check(self.updates_per_env_step > 0, "updates_per_env_step", self.updates_per_env_step, "more than 0")
        needs = self.gpus == 0 or self.updates_per_s > 0
        check(needs, "updates_per_s", self.updates_per_s, "given for GPUs, which were not measured")


@dataclass(frozen=True)
class Rates:
    """Rates of one core or of one learner, per second."""

    actor: float
    """Env steps of one actor."""
    update: float
    """Updates of one learner; on a CPU one core does them, decoding included."""
    decode: float
    """Transitions that one thread makes ready for updates; the `update` of a learner on a CPU includes that."""
    two_threads: float
    """How much two such threads do, as a multiple of one's."""
    shard_inserts: float
    """Transitions that one replay shard inserts if nothing is sampled from it."""
    shard_samples: float
    """Transitions that one replay shard gives out if nothing is inserted into it."""


@dataclass(frozen=True)
class Plan:
    """The processes to run, and the rates to expect."""

    actors: int
    learners: int
    decode_threads: int
    """Per learner."""
    shards: int
    env_steps_per_s: float
    updates_per_s: float
    limit: str
    """The part that bounds the rates."""

    def lines(self) -> list[str]:
        """Return the plan as lines of text, each with its setting."""
        return [
            f"actors                       {self.actors:4}  --launcher.actors {self.actors}",
            f"learners                     {self.learners:4}  --launcher.learners {self.learners}",
            f"decoder threads per learner  {self.decode_threads:4}  --learner.decode-threads {self.decode_threads}",
            f"replay shards                {self.shards:4}  --replay.shards {self.shards}",
            f"about {self.env_steps_per_s:,.0f} env steps/s and {self.updates_per_s:,.0f} updates/s, "
            f"limited by {self.limit}",
        ]


def make_plan(options: PlanOptions, rates_: Rates) -> Plan:
    """Return the plan that keeps every core busy.

    Every learner has a core for its training thread, which on a CPU decodes and updates, and on a GPU only launches. Of
    the others each env step takes a part for the actor, for the insert and the samples of the replay shards, and for a
    learner on a GPU a part for each transition that is decoded for it.
    """
    learners = max(options.gpus, 1)
    sampled = options.updates_per_env_step * options.batch_size  # transitions for each env step
    decode = sampled / rates_.decode if options.gpus else 0.0
    shard = 1 / rates_.shard_inserts + sampled / rates_.shard_samples
    by_cores = (options.cores - learners) / (1 / rates_.actor + shard + decode)
    by_learner = learners * rates_.update / options.updates_per_env_step
    env_steps = min(by_cores, by_learner)
    return Plan(
        actors=max(math.ceil(env_steps / rates_.actor), 1),
        learners=learners,
        decode_threads=_threads(env_steps * decode / learners, rates_.two_threads),
        shards=math.ceil(env_steps * shard),
        env_steps_per_s=env_steps,
        updates_per_s=env_steps * options.updates_per_env_step,
        limit="the learner" if by_learner < by_cores else "the number of cores",
    )


def _threads(work: float, two_threads: float) -> int:
    """Return the threads that do the work of so many that disturb nobody, if each doubling multiplies by the same."""
    needed: float = work ** (1 / math.log2(two_threads))
    return max(math.ceil(needed), 1)


def measured_rates(options: PlanOptions) -> Rates:
    """Return the measured rates, overridden by those that the options give.

    The replay service was measured with images. For vectors, which are a hundred times smaller, sampling never
    asks for a second shard here.

    Raises:
        FatalError: A rate that is needed was not measured.
    """
    is_atari = options.env.startswith("ALE/")
    replay = _measured()["replay_transitions_per_s"]
    kind = "mirrored" if options.mirror else "whole"
    case = options.case or ("nature_dueling_dqn" if is_atari else "sac_256_256")
    return Rates(
        actor=options.actor_steps_per_s or actor_steps_per_s(options.env),
        update=options.updates_per_s or updates_per_core_s(case, options.batch_size),
        decode=replay[f"decoded_{kind}"],
        two_threads=replay["two_threads"],
        shard_inserts=replay["inserted"],
        shard_samples=replay[f"sampled_{kind}"] if is_atari else math.inf,
    )


def actor_steps_per_s(env_id: str) -> float:
    """Return env steps/s of an actor on one core; for an Atari game that was not measured, the median of the others.

    Raises:
        FatalError: The environment was not measured; the message says what to do.
    """
    rates: Mapping[str, float] = _measured()["actor_env_steps_per_s"]
    if env_id in rates:
        return rates[env_id]
    if env_id.startswith("ALE/"):
        return statistics.median(rate for name, rate in rates.items() if name.startswith("ALE/"))
    raise FatalError(f"env steps/s of {env_id} were not measured; pass --actor-steps-per-s (measured: {_names(rates)})")


def updates_per_core_s(case: str, batch_size: int) -> float:
    """Return updates per second of a learner on one core, decoding included.

    Args:
        case: Name of the benchmark's case or config, e.g. `quickstart` or `nature_dueling_dqn`.
        batch_size: Items per update.

    Raises:
        FatalError: This case and batch size were not measured; the message says what to do.
    """
    cases: Mapping[str, Mapping[str, float]] = _measured()["updates_per_core_s"]
    rates = cases.get(case, {})
    if str(batch_size) in rates:
        return rates[str(batch_size)]
    known = f"measured batch sizes: {_names(rates)}" if rates else f"measured cases: {_names(cases)}"
    raise FatalError(f"updates/s of {case} at batch {batch_size} were not measured; pass --updates-per-s ({known})")


def _names(measured: Mapping[str, object]) -> str:
    return ", ".join(measured)


@cache
def _measured() -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(RATES_FILE.read_text(encoding="utf-8"))
    return document


def plan(argv: Sequence[str]) -> int:
    """Print the plan for a machine; return the exit code."""
    options = tyro.cli(PlanOptions, prog="tidemill plan", description=_ABOUT, args=list(argv))
    print("\n".join(make_plan(options, measured_rates(options)).lines()))
    return 0
