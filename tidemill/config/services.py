"""Settings of each service and of the launcher."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.config.sources import SourceSettings, check_each
from tidemill.rpc.addresses import LAST_PORT
from tidemill.rpc.settings import MEBIBYTE, ServerSettings
from tidemill.settings.check import SAFE_NAME, check, check_at_least, check_between, check_positive, is_safe_name

LOGGERS_STOP_S = 60.0
"""Longest that a launcher waits for loggers once its services have ended, in seconds."""

_STOP_GROUPS = 4  # actors, inference, learner and evaluator, servers: each ends before the next is asked to
_MAX_BLOB_BYTES = 1024**3  # what `tidemill.params` packs, fetches and unpacks at most


def _check_device(name: str, value: str) -> None:
    check(re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is not None, name, value, "auto, cpu, cuda or cuda:N")


@dataclass(frozen=True)
class StorageSettings:
    """Storage of the replay service's tables; without a folder they are kept in memory only."""

    folder: str = ""
    """Folder of the log on disk. `{run}` stands for the run's folder, `{shard}` for `replay.shard`. Empty: tables are
    kept in memory only, except that `tidemill train` uses RUN/replay/SHARD unless `memory_only` is set."""
    memory_only: bool = False
    """Keep tables in memory only, whatever `folder` is. They are lost when the service ends."""
    ack: Literal["write", "fsync"] = "write"
    """Guarantee behind an acknowledged append. `write`: the operating system has the data, so it survives a killed
    process. `fsync`: the disk has the data, so it survives a power failure; each append waits for the disk."""
    fsync_interval_ms: float = 200.0
    """Longest time between a write and its sync to disk, in milliseconds. Syncs do not overlap. A power failure
    loses at most the data of this interval plus the time of two syncs. Unused with `ack` `fsync`, which syncs as often
    as the disk allows."""
    segment_mib: int = 64
    """Size of a log segment, in MiB, at which it is closed and the next one is started."""
    max_queue_mib: int = 64
    """Maximum data waiting to be written to the log, in MiB. Appends wait while it is reached."""
    snapshot_every_s: float = 60.0
    """Seconds between snapshots of priorities and counters. 0: only on request and at the end."""

    def __post_init__(self) -> None:
        in_memory = self.memory_only  # also of a deployment, which always gives a folder
        object.__setattr__(self, "folder", "" if in_memory else os.path.expanduser(self.folder))
        check_positive("replay.storage", self, "fsync_interval_ms")
        check_at_least(1, "replay.storage", self, "segment_mib", "max_queue_mib")
        check_at_least(0, "replay.storage", self, "snapshot_every_s")


_REPLAY_REQUEST_BYTES = 20 * MEBIBYTE  # received within 20 ms; Append messages of more than 16 are sent in parts


def _listening_at(address: str, max_request_bytes: int = 0) -> ServerSettings:
    return ServerSettings(address=address, max_request_bytes=max_request_bytes)


@dataclass(frozen=True)
class ReplaySettings:
    """The replay service."""

    server: ServerSettings = field(default_factory=lambda: _listening_at("127.0.0.1:7401", _REPLAY_REQUEST_BYTES))
    """Address, security and limits of the service."""
    shards: int = 1
    """Number of shards that `tidemill train` starts, at least 1. The table is divided among them, and so is its log: a
    run keeps the number."""
    shard: int = 0
    """Index of this shard, from 0. Each shard has separate files on disk."""
    max_tables: int = 16
    """Maximum number of tables in the service, 1 to 32,768."""
    max_streams: int = 65_536
    """Maximum number of streams in the service, at least 1. Each environment of each actor writes one."""
    max_memory_mib: int = 0
    """Memory limit for data, in MiB. 0: half of the machine's memory, divided by `shards`; in a container three
    quarters of its memory, which `tidemill train` divides among its shards. Half of the limit is for stored data, a
    quarter for batches being sent, a quarter for messages being received. Further chunks are read from the log on disk;
    without a log, tables evict items."""
    storage: StorageSettings = field(default_factory=StorageSettings)
    """The log on disk."""

    def __post_init__(self) -> None:
        check_at_least(1, "replay", self, "shards", "max_streams")
        check_between(1, 32_768, "replay", self, "max_tables")
        check_at_least(0, "replay", self, "max_memory_mib")
        check(0 <= self.shard < self.shards, "replay.shard", self.shard, f"below replay.shards ({self.shards})")


@dataclass(frozen=True)
class ParamServerSettings:
    """The parameter server; versions are kept in RUN/params."""

    server: ServerSettings = field(default_factory=lambda: _listening_at("127.0.0.1:7402"))
    """Address, security and limits of the service."""
    keep_versions: int = 20
    """Newest versions kept on disk, at least 1. Tagged versions are kept in addition."""
    max_blob_bytes: int = _MAX_BLOB_BYTES
    """Largest version that is accepted, in bytes per encoding, at most 1 GiB: 268 million float32 parameters."""
    max_tags: int = 64
    """Maximum number of tags, at least 1. A tagged version stays on disk."""
    max_fetch_bytes: int = 512 * MEBIBYTE
    """Memory limit for fetches, in bytes, at least 4 MiB. Half holds one copy of the newest version for all readers.
    The other half holds data being sent, 1.25 MiB per fetch; further fetches are refused and tried again. Removed
    versions that are still being fetched may take as much on disk."""

    def __post_init__(self) -> None:
        check(
            self.max_fetch_bytes >= 4 * MEBIBYTE, "paramserver.max_fetch_bytes", self.max_fetch_bytes, "at least 4 MiB"
        )
        check_at_least(1, "paramserver", self, "max_tags", "keep_versions")
        check(
            1 <= self.max_blob_bytes <= _MAX_BLOB_BYTES,
            "paramserver.max_blob_bytes",
            self.max_blob_bytes,
            f"1 to {_MAX_BLOB_BYTES} (1 GiB)",
        )


@dataclass(frozen=True)
class InferenceSettings:
    """The inference service, which computes actions for the actors."""

    server: ServerSettings = field(default_factory=lambda: _listening_at("127.0.0.1:7406"))
    """Address, security and limits of the service."""
    device: str = "auto"
    """Device for inference: `cpu`, `cuda`, `cuda:N` or `auto`. `auto`: a GPU if there is one. `cuda` and `auto` select
    the GPU by `inference.index`."""
    index: int = 0
    """Number of this service on its machine, from 0. Services are assigned to the GPUs in turn."""
    threads: int = 1
    """Torch threads on a CPU, at least 1."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the forward pass of image networks with `dqn` and `r2d2`. Other policies act in float32 and
    refuse `bfloat16`. `auto` times both at the start and takes the faster. In float32 a GPU convolves in TF32,
    unless `NVIDIA_TF32_OVERRIDE=0` is in the environment."""
    max_batch: int = 256
    """Maximum number of environments in one forward pass, at least 1. One actor may not have more environments than
    this."""
    max_wait_ms: float = 5.0
    """Longest time that a step waits for steps of other actors, in milliseconds, 0 to 10000. It does not wait once
    every connected actor has sent its step. Longer waits give larger batches, but slow each step."""
    max_streams: int = 64
    """Maximum number of actors that may be connected at the same time, at least 1."""
    simulators: int = 0
    """How many simulators may be connected at the same time; further ones are refused until one leaves. A simulator is
    a client that plays one environment, whose steps the service stores (docs/tutorials/simulators.md). 0: none."""
    simulators_per_client: int = -1
    """Maximum number of these simulators that may connect from the same address, so that one program leaves room for
    others. -1: half of `inference.simulators`, or all of them if only this machine can reach the service."""
    simulator_grace_s: float = 30.0
    """Seconds that the episode of a disconnected simulator stays open, so that it can reconnect and continue. The
    episode then ends as truncated."""
    simulator_timeout_s: float = 300.0
    """Longest time between two steps of a simulator, in seconds. Its call then ends with an error."""

    def __post_init__(self) -> None:
        _check_device("inference.device", self.device)
        each = self.simulators_per_client
        check(each == -1 or each >= 1, "inference.simulators_per_client", each, "-1, or 1 or more")
        check_positive("inference", self, "simulator_timeout_s")
        check_at_least(0, "inference", self, "simulator_grace_s", "index")
        check_at_least(1, "inference", self, "threads", "max_batch", "max_streams")
        check_between(0, 4096, "inference", self, "simulators")
        check_between(0, 10_000, "inference", self, "max_wait_ms")


@dataclass(frozen=True)
class LearnerSettings:
    """The learner; checkpoints are kept in RUN/checkpoints."""

    server: ServerSettings = field(default_factory=lambda: _listening_at("127.0.0.1:7403"))
    """Address, security and limits of the learner's control service."""
    device: str = "auto"
    """Device for training: `cpu`, `cuda`, `cuda:N` or `auto`. `auto`: a GPU if there is one and it is faster than a
    core; the log says which and why. With several learners, each gets its own GPU. A single learner takes a GPU for
    images, for updates recorded as CUDA graphs, and for wide layers with large batches. PPO, IMPALA and PQN with small
    layers stay on the CPU."""
    threads: int = -1
    """Torch threads on a CPU. 0: as many as the machine or container has processors. -1: the same, but at most 8, if
    observations are images and this is the only learner, otherwise 1. With -1 and several threads,
    the learner sometimes measures one thread and keeps it if updates are clearly faster, as when other processes need
    the processors. With `run.deterministic` the default is 1."""
    updates_per_env_step: float = 1.0
    """Updates per agent decision, kept by the table's rate limiter. 0: as many as possible. The default depends on the
    algorithm: 0.25 for `dqn`, `d4pg`, `r2d2` and `sac_discrete`, 0 for algorithms that learn from rollouts."""
    batches_per_sample: int = 0
    """Batches per sample call. More of them make small batches cheaper, but their priorities are older. 0: chosen by
    the size of a batch."""
    prefetch_batches: int = 4
    """Decoded batches kept ready for the training thread, at least 1."""
    decode_threads: int = 1
    """Threads that decode samples, at least 1."""
    sources: Mapping[str, SourceSettings] = field(default_factory=dict)
    """Further tables to learn from, such as demonstrations or an earlier run, each by a name of your choice
    (docs/tutorials/prior-data.md). Example: `{demonstrations: {fraction: 0.5}}`. Settings of a source: `fraction`, its
    share of each batch (default 0.5); `table`, the name of its table (default: the source's name); `replay`, the
    addresses of its servers (default: those of the run); `weight`, a factor of its items' importance weights (default
    1)."""
    mirror_mib: int = -1
    """Memory for the learner's copy of the table, in MiB. With a copy, each step is sent only once. 0 disables it. -1
    sizes it for the whole table, but takes at most half of the free memory, shared by all learners on the machine."""
    mirror_device: Literal["auto", "host", "device"] = "auto"
    """Memory that holds the copy's observations. `device`: memory of the training device. `host`: main memory. `auto`:
    GPU memory if all observations fit, otherwise main memory, where several learners share one copy. On a GPU,
    `mirror_mib` -1 takes at most half of its free memory."""
    share_mirror: bool = True
    """Share one copy of the table among the learners of a machine that train together. One of them then samples for
    all."""
    publish_every: int = 100
    """Updates between published versions of the parameters, at least 1."""
    publish_least_s: float = -1.0
    """Shortest time between published versions, in seconds. -1: 0.2 on a GPU with replay, otherwise 0. A GPU makes more
    versions than actors can use, and each costs processor time in the learner."""
    max_policy_lag: int = -1
    """Maximum number of versions that an item may be behind when it is trained on. Actors wait to keep this bound. -1:
    no bound. 0 is synchronous: actors wait for the version trained on their items. Only for `ppo`, `impala` and `pqn`,
    with a `fifo` table."""
    publish_half: bool = True
    """Publish a float16 encoding of each version in addition to the full one. Actors fetch it in half the bytes."""
    checkpoint_every_s: float = 60.0
    """Seconds between checkpoints. 0: only at the end and on request."""
    keep_checkpoints: int = 3
    """Newest checkpoints kept, at least 1."""
    log_every_s: float = 10.0
    """Seconds between lines of progress in the log."""
    tensorboard_every_s: float = 2.0
    """Shortest time between points of the curves in RUN/tensorboard, in seconds. 0 disables the curves, and with
    them the training return and the counts of failed environments in the views. An actor adds a point every
    `actor.log_every_s`."""
    callbacks: tuple[str, ...] = ()
    """User-defined callbacks, each `module:name`, called on updates and published versions (docs/extending.md)."""
    ranks_timeout_s: float = 120.0
    """Seconds that a learner waits for the others it trains with. All of them then restart. On several machines the
    last checkpoint of a run must be written within two thirds of it, or it is lost; what stops the learner must
    wait as long, such as `terminationGracePeriodSeconds` of Kubernetes."""

    def __post_init__(self) -> None:
        _check_device("learner.device", self.device)
        check_each(self.sources)
        check_at_least(-1, "learner", self, "threads", "mirror_mib", "max_policy_lag")
        check_at_least(0, "learner", self, "updates_per_env_step", "batches_per_sample")
        check_at_least(0, "learner", self, "checkpoint_every_s", "tensorboard_every_s")
        check_at_least(1, "learner", self, "prefetch_batches", "decode_threads", "publish_every", "keep_checkpoints")
        check_positive("learner", self, "log_every_s", "ranks_timeout_s")
        allowed = "0 or more, or -1" if self.max_policy_lag < 0 else "0 or -1 with learner.max_policy_lag"
        is_allowed = self.publish_least_s in (0, -1) or (self.publish_least_s > 0 and self.max_policy_lag < 0)
        check(is_allowed, "learner.publish_least_s", self.publish_least_s, allowed)


@dataclass(frozen=True)
class ActorSettings:
    """One actor process; `env.num_envs` is its number of environments."""

    server: ServerSettings = field(default_factory=ServerSettings)
    """Address, security and limits of the actor's health service."""
    id: str = ""
    """Name of the actor, unique in the cluster. Empty: host name and process id."""
    index: int | None = None
    """Number of this actor, from 0, for its place on the exploration ladder and its seeds. None: computed
    from `actor.id`. Set it if you number actors by hand."""
    index_from_dns: bool = False
    """Take the actor's number from the end of this host's DNS name, as for a replica of Docker Compose."""
    count: int = 1
    """Number of actors in the cluster, at least 1. The exploration ladder is spread over all of them."""
    threads: int = 1
    """Torch threads, at least 1."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the forward pass of image networks with `dqn` and `r2d2`. Other policies act in float32 and
    refuse `bfloat16`. `auto` times both at the start and takes the faster."""
    inference_fallback: Literal["wait", "local"] = "wait"
    """Behaviour while no address of `cluster.inference` answers. `wait`: wait for one, at the start for at most
    `cluster.connect_timeout_s`. `local`: act with a network of the actor, for which it fetches all new parameters."""
    max_in_flight_chunks: int = 2
    """Chunks per environment that may be sent or queued before the actor waits for the replay service, at least 1.
    Under a rate limiter this many are always in flight, so sampled data is older by that much."""
    max_env_steps_per_s: float = 0.0
    """Maximum agent decisions per second, over all environments of the actor. 0: no limit."""
    log_every_s: float = 10.0
    """Seconds between lines of progress in the log."""

    def __post_init__(self) -> None:
        check(not self.id or is_safe_name(self.id), "actor.id", self.id, SAFE_NAME)
        check(self.index is None or self.index >= 0, "actor.index", self.index, "0 or more")
        check_at_least(1, "actor", self, "count", "threads", "max_in_flight_chunks")
        check_at_least(0, "actor", self, "max_env_steps_per_s")
        check_positive("actor", self, "log_every_s")


@dataclass(frozen=True)
class EvaluatorSettings:
    """The evaluator: how policies are evaluated, and what is recorded.

    Its episodes are full games with raw returns, even if training ends episodes with a lost life or clips rewards.
    """

    server: ServerSettings = field(default_factory=ServerSettings)
    """Address, security and limits of the evaluator's health service."""
    source: Literal["env", "simulators"] = "env"
    """Source of evaluation episodes. `env`: the evaluator plays `env.id`. `simulators`: clients of the service at
    `cluster.inference` play them as their next episodes (docs/tutorials/simulators.md); the steps are not stored, no
    video is recorded, and `policy` cannot be `sampled`."""
    episodes: int = 25
    """Episodes per evaluation, at least 1. More make the mean more reliable and an evaluation longer."""
    num_envs: int = 25
    """Evaluation environments stepped together, at least 1."""
    test_episodes: int = 0
    """Episodes of `tidemill evaluate`. 0: as many as `episodes`."""
    policy: Literal["greedy", "epsilon", "sampled"] = "greedy"
    """Policy that is evaluated. `greedy`: the deterministic policy. `epsilon`: with a random action at times, for
    discrete actions. `sampled`: with exploration noise, for continuous actions."""
    epsilon: float | None = None
    """Probability of a random action with `policy` `epsilon`, 0 to 1. None: `agent.evaluation_epsilon`."""
    noop_max: int | None = None
    """Atari: maximum no-op frames at the start of an evaluation episode. None: `env.noop_max`."""
    seed: int = 10_000
    """First seed of the evaluation's environments, at most 80,000,000. All evaluations use the same seeds; training
    uses others."""
    min_interval_s: float = 5.0
    """Shortest time from the start of one evaluation to the start of the next, in seconds."""
    start_env_steps: int = 0
    """Agent decisions before the first evaluation. 0: evaluate from the start."""
    every_env_steps: int = 0
    """Agent decisions from one evaluation to the next. The first version published after each multiple is evaluated, so
    that runs with different seeds are measured at the same points. Multiples below `start_env_steps` are skipped. So
    are multiples that a slow evaluator misses. 0: by `min_interval_s` alone."""
    last_timeout_s: float = 120.0
    """Longest time for the evaluation that ends a run, in seconds, or twice the longest evaluation so far if that is
    more. The run then ends with the scores it has."""
    confirm_episodes: int = 100
    """Episodes on other seeds whose mean must also reach `run.target_return` before the run ends. 0: no
    confirmation."""
    video: bool = True
    """Record a video of the best policy at the end of the run."""
    video_max_steps: int = 2_000
    """Longest video, in agent decisions, at least 1."""
    threads: int = 1
    """Torch threads, at least 1."""
    callbacks: tuple[str, ...] = ()
    """User-defined callbacks, each `module:name`, called on evaluations (docs/extending.md)."""

    def __post_init__(self) -> None:
        check_at_least(1, "evaluator", self, "episodes", "num_envs", "threads", "video_max_steps")
        check_at_least(0, "evaluator", self, "test_episodes", "confirm_episodes", "seed")
        check_at_least(0, "evaluator", self, "min_interval_s", "start_env_steps", "every_env_steps")
        check_positive("evaluator", self, "last_timeout_s")
        check(self.epsilon is None or 0 <= self.epsilon <= 1, "evaluator.epsilon", self.epsilon, "0 to 1, or none")
        check(self.noop_max is None or self.noop_max >= 0, "evaluator.noop_max", self.noop_max, "0 or more, or none")

    def check_seed(self) -> None:
        """Raise a `ConfigError` if the seed is too large for a new run; an earlier run may have such a seed."""
        # `tidemill evaluate` plays seeds from 10,000,000 above, training from 100,000,000
        check(self.seed <= 80_000_000, "evaluator.seed", self.seed, "at most 80,000,000")


@dataclass(frozen=True)
class LauncherSettings:
    """`tidemill train`: the processes on this machine."""

    actors: int = 1
    """Actor processes to start, at least 0. More can join a running run (docs/by-hand.md)."""
    replay: bool = True
    """Start a replay service for the run. If off, `cluster.replay` is the address of one that is running. Several runs
    may share it if each has its own `table.name` and `actor.id`."""
    inference: int = 0
    """Inference services to start, which compute actions for the actors. 0: each actor runs the network itself."""
    learners: int = 1
    """Learner processes that train together, at least 1. Each has a share of the batch, and a GPU if there is one."""
    actor_nice: int = 0
    """Niceness added to actors, 0 to 19. On few cores a higher value gives the learner processor time first."""
    evaluator_nice: int = 0
    """Niceness added to the evaluator, 0 to 19. On few cores a higher value gives training processor time first."""
    max_restarts: int = 5
    """Maximum number of restarts of one service within ten minutes, or since it was last healthy. One more failure ends
    the run. With `run.deterministic` older restarts of an actor count, too, until it has played another round."""
    restart_backoff_s: float = 1.0
    """Pause before the first restart, in seconds. It doubles with each further restart, up to 30."""
    start_timeout_s: float = 120.0
    """Seconds that a service may take to become healthy. It is then killed and restarted."""
    frozen_timeout_s: float = 30.0
    """Seconds without an answer to health checks after which a service is killed and restarted. A missing answer is
    reported within ten seconds."""
    fork_services: bool = True
    """Fork services from one process that has already imported torch. They start and restart seconds faster and share
    its memory. Needs Linux 5.3 and a Python with `os.pidfd_open`; otherwise services are started as programs."""
    stop_timeout_s: float = 20.0
    """Seconds that a service may take to end after SIGTERM before it is killed. A learner that is killed loses its
    updates since its last checkpoint, and a run that was stopped then ends with exit code 1. Raise it for
    a network whose checkpoint takes longer to write."""
    log_max_mib: float = 16.0
    """Largest log of a process, in MiB. A larger log is renamed to `NAME.log.1`, replacing the previous one. 0: no
    limit."""
    loggers: tuple[str, ...] = ()
    """Loggers that receive the run's curves during training, as from `tidemill log`: `wandb`, `mlflow`, or
    `module:name` of a tidemill.RunLogger. The run's files and TensorBoard are always written."""
    view: Literal["auto", "live", "plain", "json", "quiet"] = "auto"
    """Output in the terminal. `live`: a table, redrawn in place. `plain`: lines. `json`: a JSON object per line, for
    scripts. `quiet`: only warnings and the result. `auto`: live on a terminal, plain elsewhere."""
    view_every_s: float = 1.0
    """Seconds between updates of the view."""
    status_page: bool = True
    """Serve a web page of the run to browsers on this machine. Its address is printed at the start. All users of the
    machine can view it; pause, resume, checkpoint and stop need the printed address."""
    status_page_port: int = 0
    """Port of the status page. 0: a free port."""
    endpoints: tuple[str, ...] = ()
    """Metrics addresses of services started elsewhere, for `tidemill page`: HOST:PORT, separated by spaces. A name with
    several addresses stands for several processes. The page then also shows actors, evaluator, restarts and logs."""

    def __post_init__(self) -> None:
        check_at_least(0, "launcher", self, "actors", "inference", "max_restarts", "log_max_mib")
        check_at_least(1, "launcher", self, "learners")
        check_between(0, 19, "launcher", self, "actor_nice", "evaluator_nice")
        check_between(0, LAST_PORT, "launcher", self, "status_page_port")
        check_positive("launcher", self, "restart_backoff_s", "start_timeout_s", "frozen_timeout_s")
        check_positive("launcher", self, "stop_timeout_s", "view_every_s")

    @property
    def longest_stop_s(self) -> float:
        """The longest that a launcher takes to end its services in order, in seconds."""
        return _STOP_GROUPS * self.stop_timeout_s
