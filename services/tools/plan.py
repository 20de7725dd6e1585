"""`tidemill plan`: how many processes of each kind fill a machine, computed from the measured rates of one core."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tidemill import container_limits
from tidemill.config.command_line import document_of
from tidemill.config.help_text import describe_options
from tidemill.config.load import load_config, take_option
from tidemill.config.presets import find_config
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import AgentConfig, LearnsOnPolicy
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.settings.check import check
from tidemill.settings.overlay import overlay

RATES_FILE = Path(__file__).with_name("measured_rates.json")
"""Rates measured by the benchmarks of the repository; written by scripts/plan_rates.py from benchmarks/results."""

_ABOUT = """Print how many actors, learners, decoder threads and replay shards fill a machine, and the rates to expect.

`--config FILE` or `--config PRESET` takes the environment, batch, network and ratio of a run; options override it.
The estimate uses rates measured on one core of an AMD EPYC (benchmarks/results of the repository); a faster core does
more. Pass rates that were not measured, such as --updates-per-s of a GPU."""


@dataclass(frozen=True)
class PlanOptions:
    """A machine and a run."""

    cores: int
    """CPU cores; by default those of this machine. Each learner has its own core, unless there is only one."""
    env: str = ""
    """Environment, e.g. `ALE/Pong-v5`."""
    gpus: int = 0
    """GPUs of the machine."""
    learners: int = 1
    """Learners that train together, at most one per GPU. Each takes an equal share of every batch."""
    batch_size: int = 256
    """Items per update, summed over all learners."""
    updates_per_env_step: float = 0.0
    """Updates per agent decision, as `learner.updates_per_env_step`. 0: both sides as fast as possible."""
    case: str = ""
    """Network, by its name in the learner's benchmark. Empty: `nature_dueling_dqn` for Atari, else `sac_256_256`."""
    updates_per_s: float = 0.0
    """Updates per second of one learner alone that never waits for data. 0: the measured rate of one core."""
    actor_steps_per_s: float = 0.0
    """Env steps per second of one actor on one core. 0: the measured rate."""
    mirror: bool = True
    """Learners mirror their table, the default if there is memory for it."""

    def __post_init__(self) -> None:
        check(self.cores >= 1, "cores", self.cores, "at least 1")
        check(self.gpus >= 0, "gpus", self.gpus, "0 or more")
        most = max(self.gpus, 1)
        check(1 <= self.learners <= most, "learners", self.learners, f"1 to {most}, one per GPU")
        fewer = f"fewer than the {self.cores} cores: each needs one"
        check(self.learners <= max(self.cores - 1, 1), "learners", self.learners, fewer)
        check(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        for name in ("updates_per_env_step", "updates_per_s", "actor_steps_per_s"):
            check(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "0 or more")


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
    updates_per_env_step: float
    env_steps_per_s: float
    updates_per_s: float
    samples_per_step: float
    """How often each transition is sampled."""
    limit: str
    """The part that bounds the rates."""
    idle_cores: int
    """Cores for which this ratio has no work."""

    def lines(self) -> list[str]:
        """Return the plan as lines of text, each with its setting."""
        ratio = f"{self.updates_per_env_step:g}"
        return [
            f"actors                       {self.actors:4}  --launcher.actors {self.actors}",
            f"learners                     {self.learners:4}  --launcher.learners {self.learners}",
            f"decoder threads per learner  {self.decode_threads:4}  --learner.decode-threads {self.decode_threads}",
            f"replay shards                {self.shards:4}  --replay.shards {self.shards}",
            f"updates per env step         {ratio:>4}  --learner.updates-per-env-step {ratio}",
            f"about {self.env_steps_per_s:,.0f} env steps/s and {self.updates_per_s:,.0f} updates/s, "
            f"limited by {self.limit}; each transition is sampled about {self.samples_per_step:.3g} times",
        ]


def make_plan(options: PlanOptions, rates_: Rates) -> Plan:
    """Return the plan that keeps every core busy, as far as the ratio of updates to env steps allows.

    Every learner has a core for its training thread, which on a CPU decodes and updates, and on a GPU only launches. Of
    the others each env step takes a part for the actor and the insert, and each sampled transition a part for the
    replay shards and, for a learner on a GPU, for decoding. Several learners make each update together: they divide its
    batch and do not multiply the updates. A single core is shared by all.
    """
    is_shared = options.cores == 1
    spare = options.cores - (0 if is_shared else options.learners)
    per_step = 1 / rates_.actor + 1 / rates_.shard_inserts
    decode = 1 / rates_.decode if options.gpus else 0.0
    per_update = options.batch_size * (1 / rates_.shard_samples + decode)
    if is_shared and not options.gpus:
        per_update += 1 / rates_.update
    ratio = options.updates_per_env_step
    if ratio == 0:  # both run free: the learner takes what it can, but leaves actors a half of the cores
        for_updates = min(rates_.update * per_update, spare / 2)
        updates = min(rates_.update, for_updates / per_update) if per_update else rates_.update
        env_steps = (spare - for_updates) / per_step
        is_slowest = False
    else:
        by_cores = spare / (per_step + ratio * per_update)
        is_slowest = rates_.update / ratio < by_cores
        env_steps = min(by_cores, rates_.update / ratio)
        updates = env_steps * ratio
    shard = env_steps / rates_.shard_inserts + updates * options.batch_size / rates_.shard_samples
    return Plan(
        actors=max(math.ceil(env_steps / rates_.actor), 1),
        learners=options.learners,
        decode_threads=_threads(updates * options.batch_size * decode / options.learners, rates_.two_threads),
        shards=max(math.ceil(shard), 1),
        updates_per_env_step=ratio,
        env_steps_per_s=env_steps,
        updates_per_s=updates,
        samples_per_step=updates * options.batch_size / env_steps,
        limit="the learner" if is_slowest else "the number of cores",
        idle_cores=int(spare - env_steps * per_step - updates * per_update) if is_slowest else 0,
    )


def advice(options: PlanOptions, rates_: Rates, found: Plan) -> list[str]:
    """Return advice on resources that the plan leaves idle: cores, and GPUs beyond the first."""
    lines = []
    if found.idle_cores > 0:
        free = make_plan(dataclasses.replace(options, updates_per_env_step=0.0), rates_)
        lines += [
            f"{found.idle_cores} cores are idle: the learner can use no more steps at this ratio. Use them for",
            f"  --launcher.actors {free.actors} --learner.updates-per-env-step 0: "
            f"{free.env_steps_per_s:,.0f} env steps/s, each sampled {free.samples_per_step:.2g} times",
            "  more runs at the same time, such as other seeds (`tidemill sweep`)",
        ]
        if not options.gpus:
            lines.append("  --learner.threads: updates on several cores, whose rate was not measured")
    if options.gpus > 1:
        n, items = options.gpus, options.batch_size
        lines += [
            f"{n} GPUs do not make more updates/s than one: all learners take part in each update. Use them for",
            f"  larger batches: plan again with --learners {n} --batch-size {items * n}, {items} items on each GPU",
            f"  {n} runs at the same time: `tidemill sweep` with parallel: {n} gives each a GPU",
            f"  inference for the actors: --launcher.inference {n}",
        ]
    return lines


def _threads(work: float, two_threads: float) -> int:
    """Return the threads that do the work of so many that disturb nobody, if each doubling multiplies by the same."""
    needed: float = work ** (1 / math.log2(two_threads))
    return max(math.ceil(needed), 1)


def measured_rates(options: PlanOptions) -> Rates:
    """Return the measured rates, overridden by those that the options give.

    The rate of a learner was measured alone, with a table that nobody wrote to. In a run its core also follows the
    table and publishes; on a GPU that is not its training thread's work.

    The replay service was measured with images. For vectors, which are a hundred times smaller, sampling never
    asks for a second shard here.

    Raises:
        ConfigError: A rate that is needed was not measured.
    """
    if options.gpus and not options.updates_per_s:
        raise ConfigError("updates/s on a GPU were not measured; pass --updates-per-s of one learner")
    is_atari = options.env.startswith("ALE/")
    replay = _measured()["replay_transitions_per_s"]
    kind = "mirrored" if options.mirror else "whole"
    case = options.case or ("nature_dueling_dqn" if is_atari else "sac_256_256")
    update = options.updates_per_s or updates_per_core_s(case, options.batch_size)
    if not options.gpus:
        update = 1 / (1 / update + _measured()["update_in_run_s"])
    return Rates(
        actor=options.actor_steps_per_s or actor_steps_per_s(options.env),
        update=update,
        decode=replay[f"decoded_{kind}"],
        two_threads=replay["two_threads"],
        shard_inserts=replay["inserted"],
        shard_samples=replay[f"sampled_{kind}"] if is_atari else math.inf,
    )


def actor_steps_per_s(env_id: str) -> float:
    """Return env steps/s of an actor on one core; for an Atari game that was not measured, the median of the others.

    Raises:
        ConfigError: The environment was not measured; the message says what to do.
    """
    rates: Mapping[str, float] = _measured()["actor_env_steps_per_s"]
    if env_id in rates:
        return rates[env_id]
    if env_id.startswith("ALE/"):
        return statistics.median(rate for name, rate in rates.items() if name.startswith("ALE/"))
    raise ConfigError(
        f"env steps/s of {env_id} were not measured; pass --actor-steps-per-s (measured: {_names(rates)})"
    )


def updates_per_core_s(case: str, batch_size: int) -> float:
    """Return updates per second of a learner on one core, decoding included.

    Between two batch sizes that were measured the time of an update is interpolated.

    Args:
        case: Name of the benchmark's case or config, e.g. `quickstart` or `nature_dueling_dqn`.
        batch_size: Items per update.

    Raises:
        ConfigError: This case, or batches of this size, were not measured; the message says what to do.
    """
    cases: Mapping[str, Mapping[str, float]] = _measured()["updates_per_core_s"]
    rates = cases.get(case, {})
    sizes = sorted(int(size) for size in rates)
    if sizes and sizes[0] <= batch_size <= sizes[-1]:
        return 1 / float(np.interp(batch_size, sizes, [1 / rates[str(size)] for size in sizes]))
    known = f"measured batch sizes: {_names(rates)}" if rates else f"measured cases: {_names(cases)}"
    what = f"{case} at batch {batch_size}" if rates else f"the network {case!r}"
    raise ConfigError(f"updates/s of {what} were not measured; pass --updates-per-s ({known})")


def measured_case(agent: AgentConfig, env_id: str) -> str:
    """Return the case of the learner's benchmark that has an agent's network, or a name that no case has."""
    if isinstance(agent, DQNConfig):
        network = "nature" if agent.network == "auto" and env_id.startswith("ALE/") else agent.network
        is_plain = not agent.noisy and agent.distribution == "none" and network == "nature"
        name = "nature_dueling_dqn" if agent.dueling else "nature_dqn"
        return name if is_plain and agent.hidden_sizes == (512,) else f"{agent.algorithm} with {network}"
    if isinstance(agent, SACConfig) and agent.algorithm == "sac":
        has_more = agent.quantiles or agent.crossq or agent.critic_layer_norm or agent.lstm_size or agent.critics != 2
        if has_more or agent.critic_sizes not in ((), agent.hidden_sizes):
            return "sac with other critics or an LSTM"
        kind = "sac_bfloat16" if agent.update_precision == "bfloat16" else "sac"
        name = "_".join((kind, *map(str, agent.hidden_sizes)))
        return {"sac_128_128": "quickstart"}.get(name, name)
    return agent.algorithm


def options_of(config: RunConfig, cores: int) -> PlanOptions:
    """Return the options that a run's settings imply.

    Raises:
        ConfigError: Its algorithm learns from each item once, so that no ratio of updates to steps is set.
    """
    if isinstance(config.agent, LearnsOnPolicy):
        text = f"agent.algorithm is {config.agent.algorithm!r}, whose actors and learner take turns"
        raise ConfigError(f"{text}: plan supports only algorithms that learn from a replay table")
    return PlanOptions(
        cores=cores,
        env=config.env.id,
        batch_size=config.agent.batch_size,
        updates_per_env_step=config.learner.updates_per_env_step,
        case=measured_case(config.agent, config.env.id),
        mirror=config.learner.mirror_mib != 0,
    )


def _names(measured: Mapping[str, object]) -> str:
    return ", ".join(measured)


@cache
def _measured() -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(RATES_FILE.read_text(encoding="utf-8"))
    return document


def _options(argv: Sequence[str]) -> PlanOptions:
    """Return the options of the command line, put over those that a config file implies.

    Raises:
        ConfigError: An option is unknown, missing or out of range, or the config cannot be read.
    """
    path, words = take_option(list(argv), "--config")
    cores = container_limits.cpus()
    options = PlanOptions(cores) if path is None else options_of(load_config(find_config(path)), cores)
    options = overlay(options, document_of(words, options))
    if not options.env:
        raise ConfigError("env is empty: name an environment (--env ALE/Pong-v5), or a config with --config")
    return options


def plan(argv: Sequence[str]) -> int:
    """Print the plan for a machine; return the exit code."""
    if any(word in ("-h", "--help") for word in argv):
        print(describe_options("tidemill plan", _ABOUT, PlanOptions(container_limits.cpus())))
        return 0
    options = _options(argv)
    rates_ = measured_rates(options)
    found = make_plan(options, rates_)
    print("\n".join(found.lines() + advice(options, rates_, found)))
    return 0
