"""Settings of each service and of the launcher."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.config.sources import SourceSettings, check_each
from tidemill.rpc.settings import MEBIBYTE, ServerSettings
from tidemill.settings.check import check, is_safe_name


def _check_device(name: str, value: str) -> None:
    check(re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is not None, name, value, "auto, cpu, cuda or cuda:N")


@dataclass(frozen=True)
class StorageSettings:
    """Storage of the replay service's tables; without a folder they are kept in memory only."""

    folder: str = ""
    """Folder of the log. `{run}` stands for the run's folder, `{shard}` for `replay.shard`. Empty: in memory only;
    `tidemill train` then uses RUN/replay/SHARD unless `memory_only` is set."""
    memory_only: bool = False
    """Keep the tables in memory only under `tidemill train`. They are lost when the service ends."""
    ack: Literal["write", "fsync"] = "write"
    """When an append is acknowledged. `write`: once the system has it, so that it survives a killed process. `fsync`:
    once the disk has it, so that it survives a power failure."""
    fsync_interval_ms: float = 200.0
    """Longest time between a write and its sync to disk, in milliseconds: the most that a power failure can lose.
    Unused with `ack` fsync, which syncs whenever the disk is ready."""
    segment_mib: int = 64
    """Size at which a segment of the log is closed and the next one is started, in MiB."""
    max_queue_mib: int = 64
    """Most data waiting to be written before appends wait, in MiB."""
    snapshot_every_s: float = 60.0
    """Seconds between snapshots of priorities and counters. 0: only on request and at the end."""

    def __post_init__(self) -> None:
        check(self.fsync_interval_ms > 0, "replay.storage.fsync_interval_ms", self.fsync_interval_ms, "more than 0")
        for name in ("segment_mib", "max_queue_mib"):
            check(getattr(self, name) >= 1, f"replay.storage.{name}", getattr(self, name), "at least 1")
        check(self.snapshot_every_s >= 0, "replay.storage.snapshot_every_s", self.snapshot_every_s, "0 or more")


_REPLAY_REQUEST_BYTES = 20 * MEBIBYTE  # received within 20 ms; Append messages of more than 16 are sent in parts


def _listening_at(address: str, max_request_bytes: int = 0) -> ServerSettings:
    return ServerSettings(address=address, max_request_bytes=max_request_bytes)


@dataclass(frozen=True)
class ReplaySettings:
    """The replay service."""

    server: ServerSettings = field(default_factory=lambda: _listening_at("127.0.0.1:7401", _REPLAY_REQUEST_BYTES))
    """Where the service listens."""
    shards: int = 1
    """Shards that `tidemill train` starts, at least 1. The table is divided over them."""
    shard: int = 0
    """Index of this shard, from 0. Each shard has separate files on disk."""
    max_tables: int = 16
    """Most tables in the service."""
    max_streams: int = 65_536
    """Most streams in the service, over all actors."""
    max_memory_mib: int = 0
    """Memory limit for data, in MiB. Half is for stored data, a quarter for batches being sent, a quarter for messages
    being received. Beyond it chunks are read from the log; without a log, tables evict items. 0: three quarters of the
    container's memory, or half of the machine's, divided by `shards`."""
    storage: StorageSettings = field(default_factory=StorageSettings)
    """The log on disk."""

    def __post_init__(self) -> None:
        check(self.shards >= 1, "replay.shards", self.shards, "at least 1")
        check(0 <= self.shard < self.shards, "replay.shard", self.shard, f"below replay.shards ({self.shards})")
        check(self.max_tables >= 1, "replay.max_tables", self.max_tables, "at least 1")
        check(self.max_streams >= 1, "replay.max_streams", self.max_streams, "at least 1")
        check(self.max_memory_mib >= 0, "replay.max_memory_mib", self.max_memory_mib, "0 or more")


@dataclass(frozen=True)
class ParamServerSettings:
    """The parameter server; versions are kept in RUN/params."""

    server: ServerSettings = field(default_factory=lambda: _listening_at("127.0.0.1:7402"))
    """Where the service listens."""
    keep_versions: int = 20
    """Newest versions kept on disk, at least 1. Tagged versions are kept in addition."""
    max_blob_bytes: int = 1024**3
    """Largest encoding of a version that is accepted, in bytes."""
    max_tags: int = 64
    """Most tags, at least 1. Each keeps its version on disk."""
    max_fetch_bytes: int = 512 * MEBIBYTE
    """Memory limit for fetches, in bytes, at least 4 MiB. Half holds the newest version once for all fetches; the other
    half holds data being sent, 1.25 MiB per fetch, and further fetches wait. It also limits the disk space of removed
    versions that are still being fetched."""

    def __post_init__(self) -> None:
        check(
            self.max_fetch_bytes >= 4 * MEBIBYTE, "paramserver.max_fetch_bytes", self.max_fetch_bytes, "at least 4 MiB"
        )
        check(self.max_tags >= 1, "paramserver.max_tags", self.max_tags, "at least 1")
        check(self.keep_versions >= 1, "paramserver.keep_versions", self.keep_versions, "at least 1")
        check(self.max_blob_bytes >= 1, "paramserver.max_blob_bytes", self.max_blob_bytes, "at least 1")


@dataclass(frozen=True)
class InferenceSettings:
    """The inference service, which computes actions for the actors."""

    server: ServerSettings = field(default_factory=lambda: _listening_at("127.0.0.1:7406"))
    """Where the service listens."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:N`, or `auto`: a GPU if there is one. `cuda` and `auto` select the GPU by
    `inference.index`."""
    index: int = 0
    """Number of this service on its machine, from 0. Services are assigned to the GPUs in turn."""
    threads: int = 1
    """Torch threads on a CPU, at least 1."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of an image network's forward pass. `auto` times both at the start and takes the faster."""
    max_batch: int = 256
    """Most environments in one forward pass, and of one actor, at least 1."""
    max_wait_ms: float = 5.0
    """Longest time that a step waits for steps of other actors, in milliseconds. It does not wait once every connected
    actor has sent its step."""
    max_streams: int = 64
    """Most actors at the same time, at least 1."""
    simulators: int = 0
    """Most programs that may play as clients of this service at a time, each with its own environment
    (docs/tutorials/simulators.md). 0 disables them. The service then also writes to the replay service."""
    simulator_grace_s: float = 30.0
    """How long an episode stays open whose program is gone, in seconds, so that it can continue; then it ends as
    truncated."""
    simulator_timeout_s: float = 300.0
    """Longest time from one step of such a program to the next, in seconds; then its call ends."""

    def __post_init__(self) -> None:
        _check_device("inference.device", self.device)
        check(0 <= self.simulators <= 4096, "inference.simulators", self.simulators, "0 to 4096")
        check(self.simulator_grace_s >= 0, "inference.simulator_grace_s", self.simulator_grace_s, "0 or more")
        check(self.simulator_timeout_s > 0, "inference.simulator_timeout_s", self.simulator_timeout_s, "more than 0")
        for name in ("threads", "max_batch", "max_streams"):
            check(getattr(self, name) >= 1, f"inference.{name}", getattr(self, name), "at least 1")
        check(self.index >= 0, "inference.index", self.index, "0 or more")
        check(0 <= self.max_wait_ms <= 10_000, "inference.max_wait_ms", self.max_wait_ms, "0 to 10000")


@dataclass(frozen=True)
class LearnerSettings:
    """The learner; checkpoints are kept in RUN/checkpoints."""

    server: ServerSettings = field(default_factory=lambda: _listening_at("127.0.0.1:7403"))
    """Where the learner's control service listens."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:N`, or `auto`: a GPU if there is one and it is faster than a core. With `auto` each of
    several learners has its own GPU. A single learner takes one for images, for updates recorded as CUDA graphs, and
    for wide layers with large batches; its log says which. PPO, IMPALA and PQN with small layers stay on the CPU."""
    threads: int = 1
    """Torch threads on a CPU. 0: as many as the machine or container has processors."""
    updates_per_env_step: float = 1.0
    """Updates per agent decision, enforced by the table's rate limiter. 0: as many as possible. The default depends on
    the algorithm: 0.25 for `dqn`, `d4pg`, `r2d2` and `sac_discrete`, 0 for algorithms that learn from rollouts."""
    batches_per_sample: int = 0
    """Batches per sample call. More of them make small batches cheaper, with older priorities. 0: chosen by the size of
    a batch."""
    prefetch_batches: int = 4
    """Decoded batches kept ready for the training thread, at least 1."""
    decode_threads: int = 1
    """Threads that decode samples, at least 1."""
    sources: Mapping[str, SourceSettings] = field(default_factory=dict)
    """Tables to learn from in addition to the run's own, such as demonstrations or an earlier run, by a name
    (docs/tutorials/prior-data.md): `{demonstrations: {fraction: 0.5}}`. Each has `fraction`, its share of each batch
    (0.5), `table`, the name of its table (that of the source), `replay`, the addresses of its servers (those of the
    run), and `weight`, a factor of its items' importance weights (1)."""
    mirror_mib: int = -1
    """Memory for the learner's copy of the table, in MiB. Each step is then sent only once. 0 disables the copy. -1
    sizes it for the whole table, but takes at most half of the free memory, shared by all learners on the machine."""
    mirror_device: Literal["auto", "host", "device"] = "auto"
    """Where the copy keeps its observations. `device`: on the training device. `host`: in host memory. `auto`: on the
    GPU if they all fit, otherwise in host memory, where several learners share one copy. On a GPU, -1 of `mirror_mib`
    takes at most half of its free memory."""
    share_mirror: bool = True
    """Share one copy of the table among the learners of a machine that train together. One of them samples for all."""
    publish_every: int = 100
    """Updates between published versions, at least 1."""
    publish_least_s: float = -1.0
    """Least seconds between published versions. -1: 0.2 on a GPU with replay, otherwise 0. A GPU makes more versions
    than actors can use, and each costs processor time in the learner."""
    max_policy_lag: int = -1
    """Most versions that an item may be behind when it is trained on; actors wait to keep the bound. -1: no bound. 0 is
    synchronous: actors wait for the version trained on their items. For `ppo` and `impala`, on a `fifo` table."""
    publish_half: bool = True
    """Publish a float16 encoding for actors in addition to the full one."""
    checkpoint_every_s: float = 60.0
    """Seconds between checkpoints. 0: only at the end and on request."""
    keep_checkpoints: int = 3
    """Newest checkpoints kept, at least 1."""
    log_every_s: float = 10.0
    """Seconds between lines of progress in the log."""
    tensorboard_every_s: float = 2.0
    """Least seconds between points of the curves in RUN/tensorboard. An actor adds a point every `actor.log_every_s`. 0
    disables the curves."""
    callbacks: tuple[str, ...] = ()
    """User-defined callbacks, each `module:name`, called on updates and published versions (docs/extending.md)."""
    ranks_timeout_s: float = 120.0
    """Seconds that one of several learners waits for the others. After that all of them restart."""

    def __post_init__(self) -> None:
        _check_device("learner.device", self.device)
        check(self.threads >= 0, "learner.threads", self.threads, "0 or more")
        check(
            self.updates_per_env_step >= 0,
            "learner.updates_per_env_step",
            self.updates_per_env_step,
            "0 or more",
        )
        check(self.batches_per_sample >= 0, "learner.batches_per_sample", self.batches_per_sample, "0 or more")
        check_each(self.sources)
        check(self.mirror_mib >= -1, "learner.mirror_mib", self.mirror_mib, "-1 or more")
        check(self.max_policy_lag >= -1, "learner.max_policy_lag", self.max_policy_lag, "-1 or more")
        allowed = "0 or more, or -1" if self.max_policy_lag < 0 else "0 or -1 with learner.max_policy_lag"
        is_allowed = self.publish_least_s in (0, -1) or (self.publish_least_s > 0 and self.max_policy_lag < 0)
        check(is_allowed, "learner.publish_least_s", self.publish_least_s, allowed)
        for name in ("prefetch_batches", "decode_threads", "publish_every", "keep_checkpoints"):
            check(getattr(self, name) >= 1, f"learner.{name}", getattr(self, name), "at least 1")
        check(self.checkpoint_every_s >= 0, "learner.checkpoint_every_s", self.checkpoint_every_s, "0 or more")
        check(self.log_every_s > 0, "learner.log_every_s", self.log_every_s, "more than 0")
        check(self.tensorboard_every_s >= 0, "learner.tensorboard_every_s", self.tensorboard_every_s, "0 or more")
        check(self.ranks_timeout_s > 0, "learner.ranks_timeout_s", self.ranks_timeout_s, "more than 0")


@dataclass(frozen=True)
class ActorSettings:
    """One actor process; `env.num_envs` is its number of environments."""

    server: ServerSettings = field(default_factory=ServerSettings)
    """Where the actor's health service listens."""
    id: str = ""
    """Name of the actor, unique in the cluster. Empty: host name and process id."""
    index: int | None = None
    """Number of this actor among `count`, for the exploration ladder and for seeds. None: the number at the end of its
    name."""
    index_from_dns: bool = False
    """Take the actor's number from the end of the name that DNS has for this host's address, as for a replica of Docker
    Compose."""
    count: int = 1
    """Number of actors over which the exploration ladder is spread, at least 1."""
    threads: int = 1
    """Torch threads, at least 1."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of an image network's forward pass. `auto` times both at the start and takes the faster."""
    inference_fallback: Literal["wait", "local"] = "wait"
    """What an actor does while no address of `cluster.inference` answers. `wait`: it waits. `local`: it acts with its
    own network, for which it fetches parameters all the time."""
    max_in_flight_chunks: int = 2
    """Chunks per environment that may be sent or queued before the actor waits for the replay service, at least 1.
    Behind a rate limiter this many are always in flight, and sampled data is older by that much."""
    max_env_steps_per_s: float = 0.0
    """Most agent decisions per second, over all environments of the actor. 0: no limit."""
    log_every_s: float = 10.0
    """Seconds between lines of progress in the log."""

    def __post_init__(self) -> None:
        check(
            not self.id or is_safe_name(self.id),
            "actor.id",
            self.id,
            "letters, digits, `_`, `-`, `.`; at most 128",
        )
        check(self.count >= 1, "actor.count", self.count, "at least 1")
        check(self.index is None or self.index >= 0, "actor.index", self.index, "0 or more")
        check(self.threads >= 1, "actor.threads", self.threads, "at least 1")
        chunks = self.max_in_flight_chunks
        check(chunks >= 1, "actor.max_in_flight_chunks", chunks, "at least 1")
        check(self.max_env_steps_per_s >= 0, "actor.max_env_steps_per_s", self.max_env_steps_per_s, "0 or more")


@dataclass(frozen=True)
class EvaluatorSettings:
    """The evaluator: how policies are evaluated, and what is recorded.

    Its episodes are full games with raw returns, even if training ends episodes with a lost life or clips rewards.
    """

    server: ServerSettings = field(default_factory=ServerSettings)
    """Where the evaluator's health service listens."""
    source: Literal["env", "simulators"] = "env"
    """Where evaluation episodes are played. `env`: in `env.id`, by the evaluator. `simulators`: by the clients of the
    service at `cluster.inference` (docs/tutorials/simulators.md), as the next episodes that begin. Their steps are not
    stored, no video is recorded, and `policy` cannot be `sampled`."""
    episodes: int = 25
    """Episodes per evaluation, at least 1."""
    num_envs: int = 25
    """Environments stepped together, at least 1."""
    test_episodes: int = 0
    """Episodes of `tidemill evaluate`. 0: as many as `episodes`."""
    policy: Literal["greedy", "epsilon", "sampled"] = "greedy"
    """Policy that is evaluated. `greedy`: the deterministic policy. `epsilon`: with random actions at times, for
    discrete actions. `sampled`: with exploration noise, for continuous actions."""
    epsilon: float | None = None
    """Probability of a random action with `policy: epsilon`, 0 to 1. None: `agent.evaluation_epsilon`."""
    noop_max: int | None = None
    """Atari: most frames without action at the start of an evaluation episode. None: `env.noop_max`."""
    seed: int = 10_000
    """First seed of the evaluation's environments. It is never a training seed."""
    min_interval_s: float = 5.0
    """Least time from the start of one evaluation to the start of the next, in seconds."""
    start_env_steps: int = 0
    """Agent decisions before the first evaluation. Earlier parameters are not evaluated."""
    every_env_steps: int = 0
    """Agent decisions from one evaluation to the next. The first version published after each multiple is evaluated, so
    that runs with several seeds are measured at the same points. 0: by `min_interval_s` alone."""
    last_timeout_s: float = 120.0
    """Longest time for the evaluation that ends a run, in seconds, or twice the longest evaluation so far if that is
    more. After it the run ends with the scores it has."""
    confirm_episodes: int = 100
    """Fresh episodes on other seeds whose mean must also reach the target before the run ends. 0: none."""
    video: bool = True
    """Record a video of the best policy at the end of the run."""
    video_max_steps: int = 2_000
    """Longest video, in agent decisions."""
    threads: int = 1
    """Torch threads, at least 1."""
    callbacks: tuple[str, ...] = ()
    """User-defined callbacks, each `module:name`, called on evaluations (docs/extending.md)."""

    def __post_init__(self) -> None:
        for name in ("episodes", "num_envs", "threads", "video_max_steps"):
            check(getattr(self, name) >= 1, f"evaluator.{name}", getattr(self, name), "at least 1")
        for name in (
            "min_interval_s",
            "start_env_steps",
            "every_env_steps",
            "confirm_episodes",
            "seed",
            "test_episodes",
        ):
            check(getattr(self, name) >= 0, f"evaluator.{name}", getattr(self, name), "0 or more")
        check(self.last_timeout_s > 0, "evaluator.last_timeout_s", self.last_timeout_s, "more than 0")
        check(self.epsilon is None or 0 <= self.epsilon <= 1, "evaluator.epsilon", self.epsilon, "0 to 1, or none")
        check(self.noop_max is None or self.noop_max >= 0, "evaluator.noop_max", self.noop_max, "0 or more, or none")


@dataclass(frozen=True)
class LauncherSettings:
    """`tidemill train`: the processes on this machine."""

    actors: int = 1
    """Actor processes to start, at least 0. More may join by hand."""
    replay: bool = True
    """Start a replay service for the run. Without it, `cluster.replay` is the address of one. Several runs may share it
    if each has its own `table.name` and `actor.id`."""
    inference: int = 0
    """Inference services to start, which compute actions for the actors. 0: each actor runs the network itself."""
    learners: int = 1
    """Learner processes that train together, at least 1. Each has a share of the batch, and a GPU if there is one."""
    actor_nice: int = 0
    """Niceness added to actors, 0 to 19. On few cores the learner then gets processor time first."""
    evaluator_nice: int = 0
    """Niceness added to the evaluator, 0 to 19."""
    max_restarts: int = 5
    """Most restarts of one service within ten minutes before the run fails."""
    restart_backoff_s: float = 1.0
    """Pause before the first restart, in seconds. It doubles with each further restart, up to 30."""
    start_timeout_s: float = 120.0
    """Seconds that a service may take to become healthy."""
    frozen_timeout_s: float = 30.0
    """Seconds without an answer to health checks after which a service is killed and restarted. A service that does not
    answer is reported within ten seconds."""
    fork_services: bool = True
    """Fork services from one process that has already imported torch. They start and restart seconds faster and share
    its memory. Linux only."""
    stop_timeout_s: float = 20.0
    """Seconds that a service may take to end after SIGTERM before it is killed."""
    log_max_mib: float = 16.0
    """Longest log of a process, in MiB. A longer one becomes `NAME.log.1`, which replaces an earlier one. 0: no
    limit."""
    loggers: tuple[str, ...] = ()
    """Loggers that receive the run's curves during training, as from `tidemill log`: `wandb`, `mlflow`, or
    `module:name` of a tidemill.RunLogger. The run's files and TensorBoard are always written."""
    view: Literal["auto", "live", "plain", "json", "quiet"] = "auto"
    """What the terminal shows. `live`: a table, redrawn in place. `plain`: lines. `json`: a JSON object per line, for
    scripts. `quiet`: only warnings and the result. `auto`: live on a terminal, plain elsewhere."""
    view_every_s: float = 1.0
    """Seconds between updates of the view."""
    status_page: bool = True
    """Serve a web page of the run to browsers on this machine; its address is printed at the start. All users of the
    machine can look at it. Pause, resume, checkpoint and stop need the printed address."""
    status_page_port: int = 0
    """Port of the status page. 0: a free port."""
    endpoints: tuple[str, ...] = ()
    """Metrics addresses of services that were started elsewhere, for `tidemill page`: HOST:PORT, separated by spaces. A
    name with several addresses stands for several processes. The page then also shows actors, evaluator, restarts and
    logs."""

    def __post_init__(self) -> None:
        check(self.actors >= 0, "launcher.actors", self.actors, "0 or more")
        check(self.inference >= 0, "launcher.inference", self.inference, "0 or more")
        check(self.learners >= 1, "launcher.learners", self.learners, "at least 1")
        for name in ("actor_nice", "evaluator_nice"):
            check(0 <= getattr(self, name) <= 19, f"launcher.{name}", getattr(self, name), "0 to 19")
        check(self.max_restarts >= 0, "launcher.max_restarts", self.max_restarts, "0 or more")
        check(self.log_max_mib >= 0, "launcher.log_max_mib", self.log_max_mib, "0 or more")
        check(0 <= self.status_page_port <= 65535, "launcher.status_page_port", self.status_page_port, "0 to 65535")
        for name in ("restart_backoff_s", "start_timeout_s", "frozen_timeout_s", "stop_timeout_s", "view_every_s"):
            check(getattr(self, name) > 0, f"launcher.{name}", getattr(self, name), "more than 0")
