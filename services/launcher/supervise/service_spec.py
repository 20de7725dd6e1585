"""Specifications of the processes that the launcher starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemill import container_limits
from tidemill.config.lock_step import history_file
from tidemill.config.sections import RunConfig
from tidemill.services.launcher.run.paths import actor_address, inference_addresses, shard_address

REPLAY, PARAMSERVER, LEARNER, EVALUATOR, ACTOR = "replay", "paramserver", "learner", "evaluator", "actor"
INFERENCE = "inference"


@dataclass(frozen=True)
class ServiceSpec:
    """One process of the cluster.

    Attributes:
        name: Unique, e.g. `actor-0`; names its log file.
        kind: Which service it is, e.g. `actor`.
        module: What `python -m` runs.
        arguments: Its command line.
        health_address: Where its health service answers.
        after: Names of services that must be serving before it is started. Few are listed: most processes
            wait for what they need by themselves, and importing takes seconds in which they need nothing.
        nice: Added to its niceness, so that the learner is not starved on a machine with few cores.
        needs_torch: Whether it imports torch; one that does not is forked before the fork server has.
        forks: Whether it starts processes that may be forked, too.
        history: File that grows as it gets further and that it plays again after a restart, so that a failure may recur
            each time. None: it has no such file.
    """

    name: str
    kind: str
    module: str
    arguments: tuple[str, ...]
    health_address: str
    after: tuple[str, ...] = ()
    nice: int = 0
    needs_torch: bool = False
    forks: bool = False
    history: Path | None = None


def cluster_specs(config: RunConfig, config_file: Path, sockets: Path) -> tuple[ServiceSpec, ...]:
    """Return the processes of a run in the order in which they are started.

    Args:
        config: Settings with addresses, see `with_addresses`.
        config_file: The same settings as a file, which every process reads.
        sockets: Folder of the actors' health sockets.
    """

    def spec(name: str, address: str, after: tuple[str, ...] = (), nice: int = 0) -> ServiceSpec:
        arguments = ("--config", str(config_file))
        needs_torch = name == EVALUATOR
        return ServiceSpec(name, name, f"tidemill.services.{name}", arguments, address, after, nice, needs_torch)

    shards = range(config.replay.shards if config.launcher.replay else 0)
    return (
        *(
            (spec(REPLAY, config.replay.server.address),)
            if len(shards) == 1
            else (_shard_spec(config, config_file, sockets, shard) for shard in shards)
        ),
        spec(PARAMSERVER, config.paramserver.server.address),
        _learner_spec(config, config_file),
        *(
            _inference_spec(config_file, index, address)
            for index, address in enumerate(inference_addresses(config, sockets)[: config.launcher.inference])
        ),
        *(_actor_spec(config, config_file, sockets, index) for index in range(config.launcher.actors)),
        # Its imports would delay the first environment step, and there is nothing to evaluate before that.
        spec(EVALUATOR, config.evaluator.server.address, (LEARNER,), config.launcher.evaluator_nice),
    )


def _learner_spec(config: RunConfig, config_file: Path) -> ServiceSpec:
    """Return one process: the learner, or of several the one that starts them and starts them again together."""
    address = config.learner.server.address
    settings: tuple[str, ...] = ("--config", str(config_file))
    if config.run.deterministic:
        settings += ("--actor.count", str(_actor_count(config)))
    if config.launcher.learners == 1:
        return ServiceSpec(LEARNER, LEARNER, "tidemill.services.learner", settings, address, needs_torch=True)
    ranks = (str(config.launcher.learners), str(config.launcher.max_restarts))
    module = "tidemill.services.learner.torchrun"
    return ServiceSpec(LEARNER, LEARNER, module, (*ranks, *settings), address, needs_torch=True, forks=True)


def _actor_count(config: RunConfig) -> int:
    return max(config.actor.count, config.launcher.actors)


def _shard_spec(config: RunConfig, config_file: Path, sockets: Path, shard: int) -> ServiceSpec:
    address, folder = shard_address(sockets, shard), config.replay.storage.folder
    arguments = ["--config", str(config_file), "--replay.shard", str(shard), "--replay.server.address", address]
    if folder and "{shard}" not in folder:  # a folder for all is divided, for no two may share one
        arguments += ["--replay.storage.folder", f"{folder}/{shard}"]
    limit = container_limits.memory_bytes() or 0
    if not config.replay.max_memory_mib and 0 < limit < container_limits.machine_memory_bytes():
        part_mib = limit // 4 * 3 // config.replay.shards // 2**20  # each would take the limit for its own
        arguments += ["--replay.max-memory-mib", str(max(part_mib, 1))]
    return ServiceSpec(f"replay-{shard}", REPLAY, "tidemill.services.replay", tuple(arguments), address)


def _inference_spec(config_file: Path, index: int, address: str) -> ServiceSpec:
    settings = ("--config", str(config_file), "--inference.server.address", address)
    arguments = (*settings, "--inference.index", str(index))
    module = "tidemill.services.inference"
    return ServiceSpec(f"{INFERENCE}-{index}", INFERENCE, module, arguments, address, needs_torch=True)


def _actor_spec(config: RunConfig, config_file: Path, sockets: Path, index: int) -> ServiceSpec:
    address = actor_address(sockets, index)
    actor_id = f"{config.actor.id or 'actor'}-{index}"
    arguments = {
        "--config": config_file,
        "--actor.id": actor_id,
        "--actor.index": (config.actor.index or 0) + index,
        "--actor.count": _actor_count(config),
        "--actor.server.address": address,
    }
    words = tuple(str(word) for pair in arguments.items() for word in pair)
    nice = config.launcher.actor_nice
    return ServiceSpec(
        f"actor-{index}",
        ACTOR,
        "tidemill.services.actor",
        words,
        address,
        nice=nice,
        needs_torch=True,
        history=history_file(config.run, actor_id) if config.run.deterministic else None,
    )
