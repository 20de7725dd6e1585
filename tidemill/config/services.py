"""Settings of one process each, beside those of the run, the environment and the agent."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from tidemill.rpc.settings import MEBIBYTE, ServerSettings
from tidemill.settings.check import check, is_safe_name


def _check_device(name: str, value: str) -> None:
    check(re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is not None, name, value, "auto, cpu, cuda or cuda:N")


@dataclass(frozen=True)
class StorageSettings:
    """Where and how the replay service keeps its tables; without a folder they are in memory only."""

    folder: str = ""
    """Folder of the log; `{run}` in it stands for the run's folder, `{shard}` for `replay.shard`. Empty: in memory
    only. `tidemill train` takes RUN/replay/SHARD unless `memory_only` is set."""
    memory_only: bool = False
    """Whether `tidemill train` keeps the tables in memory only: they are then lost when the service ends."""
    ack: Literal["write", "fsync"] = "write"
    """When an append is acknowledged: once the system has it (survives a killed process), or once the disk has."""
    fsync_interval_ms: float = 200.0
    """Longest time between a write and its way to the disk, in milliseconds: what a power failure may cost. Not used
    with `ack` fsync, which syncs whatever has come as soon as the disk is ready for more."""
    segment_mib: int = 64
    """Size at which a segment of the log is closed and the next one begins, in MiB."""
    max_queue_mib: int = 64
    """Most MiB that wait to be written before appends wait."""
    snapshot_every_s: float = 60.0
    """Seconds between two snapshots of priorities and counters; 0: only on request and at the end."""

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
    """Where it listens."""
    shards: int = 1
    """Shards `tidemill train` starts, at least 1; the table is divided over them."""
    shard: int = 0
    """Index of this shard, from 0; each keeps separate files on disk."""
    max_tables: int = 16
    """Most tables it keeps."""
    max_streams: int = 65_536
    """Most streams it keeps, over all actors."""
    max_memory_mib: int = 0
    """Most MiB of memory it takes for its callers: a half for what is stored, a quarter for batches on their way, a
    quarter for messages that wait. Beyond it chunks are read from the log, or without one tables evict items. 0: three
    quarters of its container's memory, or without a container half the machine's, divided by `shards`."""
    storage: StorageSettings = field(default_factory=StorageSettings)
    """Its log on disk."""

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
    """Where it listens."""
    keep_versions: int = 20
    """Newest versions kept on disk, at least 1; tagged versions are kept besides."""
    max_blob_bytes: int = 1024**3
    """Largest encoding of a version it accepts, in bytes."""
    max_tags: int = 64
    """Most tags, at least 1; each keeps its version on disk."""
    max_fetch_bytes: int = 512 * MEBIBYTE
    """Most memory for versions that are being fetched, in bytes, at least 4 MiB: half for the newest one, held once for
    all, the other half for what is on its way, 1.25 MiB for each fetch; further fetches wait. Also the most disk kept
    for removed versions that are still fetched."""

    def __post_init__(self) -> None:
        check(
            self.max_fetch_bytes >= 4 * MEBIBYTE, "paramserver.max_fetch_bytes", self.max_fetch_bytes, "at least 4 MiB"
        )
        check(self.max_tags >= 1, "paramserver.max_tags", self.max_tags, "at least 1")
        check(self.keep_versions >= 1, "paramserver.keep_versions", self.keep_versions, "at least 1")
        check(self.max_blob_bytes >= 1, "paramserver.max_blob_bytes", self.max_blob_bytes, "at least 1")


@dataclass(frozen=True)
class InferenceSettings:
    """The inference service, which passes through the network for actors that `cluster.inference` sends to it."""

    server: ServerSettings = field(default_factory=lambda: _listening_at("127.0.0.1:7406"))
    """Where it listens."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:N`, or `auto`: a GPU if there is one. `cuda` and `auto` take that of `inference.index`."""
    index: int = 0
    """Number of this service among those of a machine: several are spread over its GPUs, counted round."""
    threads: int = 1
    """Threads torch computes with on a CPU, at least 1."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of an image network's forward pass; `auto` times both at the start and takes the faster."""
    max_batch: int = 256
    """Most environments in one forward pass, and of one actor, at least 1."""
    max_wait_ms: float = 5.0
    """Longest time that a step waits for those of other actors, in milliseconds; it waits for nobody once every
    connected actor has sent its step."""
    max_streams: int = 64
    """Most actors at a time, at least 1."""

    def __post_init__(self) -> None:
        _check_device("inference.device", self.device)
        for name in ("threads", "max_batch", "max_streams"):
            check(getattr(self, name) >= 1, f"inference.{name}", getattr(self, name), "at least 1")
        check(self.index >= 0, "inference.index", self.index, "0 or more")
        check(0 <= self.max_wait_ms <= 10_000, "inference.max_wait_ms", self.max_wait_ms, "0 to 10000")


@dataclass(frozen=True)
class LearnerSettings:
    """The learner; checkpoints are kept in RUN/checkpoints."""

    server: ServerSettings = field(default_factory=lambda: _listening_at("127.0.0.1:7403"))
    """Where its control service listens."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:N`, or `auto`: a GPU if there is one and it makes updates sooner than a core.

    With `auto` several learners have a GPU each. A learner alone takes one for images, for updates that are recorded as
    CUDA graphs, and for wide layers with large batches; its log says which. PPO, IMPALA and PQN of small layers stay on
    the CPU.
    """
    threads: int = 1
    """Threads torch computes with on a CPU; 0: as many as the machine or the container has processors for."""
    updates_per_env_step: float = 1.0
    """Updates per agent decision, enforced by the table's rate limiter; 0: as many as possible. The default
    depends on the algorithm: 0.25 for `dqn`, `d4pg`, `r2d2` and `sac_discrete`, 0 for those of rollouts."""
    batches_per_sample: int = 0
    """Batches drawn in one sample call: more makes small ones cheaper, with older priorities; 0: by their size."""
    prefetch_batches: int = 4
    """Decoded batches held ready for the training thread, at least 1."""
    decode_threads: int = 1
    """Threads that decode samples, at least 1."""
    mirror_mib: int = -1
    """Memory for the table's decoded steps, each sent once, in MiB; 0: none; -1: as the table needs.

    Of the memory that is free -1 takes at most a half, divided among the learners of the machine that keep one.
    """
    mirror_device: Literal["auto", "host", "device"] = "auto"
    """Where its observations lie: with `device` where the learner computes; with `auto` on a GPU if all of them fit.

    There -1 of `mirror_mib` takes at most a half of the device's free memory. Of several learners each keeps one on its
    device; with `auto` they share one in the host's memory if it does not fit on all of them.
    """
    share_mirror: bool = True
    """Whether the learners of a machine that train together keep one such mirror, sampled by one of them for all."""
    publish_every: int = 100
    """Updates between two published versions, at least 1."""
    publish_least_s: float = -1.0
    """Least seconds between two published versions; -1: 0.2 on a GPU where items are drawn from a replay, else 0.

    A GPU makes more versions than actors have use for, and each costs the learner's process time on a core.
    """
    max_policy_lag: int = -1
    """Versions that an item may be behind when it is trained on, held by making actors wait; -1: no bound.

    For `ppo` and `impala`, on a `fifo` table. 0 is synchronous: actors wait for the version that their items led to.
    """
    publish_half: bool = True
    """Whether a float16 encoding for actors is published besides the full one."""
    checkpoint_every_s: float = 60.0
    """Seconds between two checkpoints; 0 means only at the end and on request."""
    keep_checkpoints: int = 3
    """Newest checkpoints kept, at least 1."""
    log_every_s: float = 10.0
    """Seconds between two lines of progress in the log."""
    tensorboard_every_s: float = 2.0
    """Least seconds between two points of the curves in RUN/tensorboard: the learner's, and those of the actors and the
    table (an actor writes one every `actor.log_every_s`); 0 writes none of them."""
    callbacks: tuple[str, ...] = ()
    """User-defined callbacks, each `module:name`, called on updates and published versions (docs/extending.md)."""
    ranks_timeout_s: float = 120.0
    """How long one of several learners waits for the others before it gives up and all restart, in seconds."""

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
    """One actor process; its number of environments is `env.num_envs`."""

    server: ServerSettings = field(default_factory=ServerSettings)
    """Where its health service listens."""
    id: str = ""
    """Name of the actor, unique in the cluster; empty takes host name and process id."""
    index: int | None = None
    """Number of this actor among `count`, for the exploration ladder and for seeds; none takes one from its name."""
    index_from_dns: bool = False
    """Whether the number ends the name that DNS has for this host's address, as of a replica of Docker Compose."""
    count: int = 1
    """Number of actors the exploration ladder is spread over, at least 1."""
    threads: int = 1
    """Threads torch computes with, at least 1."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of an image network's forward pass; `auto` times both at the start and takes the faster."""
    inference_fallback: Literal["wait", "local"] = "wait"
    """What an actor does while no address of `cluster.inference` answers: wait, or act by its own network meanwhile,
    whose parameters it then fetches all the time."""
    max_in_flight_chunks: int = 2
    """Chunks per environment that may be sent or queued before the actor waits for the replay service, at least 1.

    Behind a rate limiter this many are always in flight, so sampled data is older by as much.
    """
    max_env_steps_per_s: float = 0.0
    """Most agent decisions per second, summed over all environments; 0 means no limit."""
    log_every_s: float = 10.0
    """Seconds between two lines of progress in the log."""

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
    """The evaluator: how a policy is evaluated, and what is recorded.

    Its episodes are full games with raw returns, even if training ends episodes with a lost life or clips rewards.
    """

    server: ServerSettings = field(default_factory=ServerSettings)
    """Where its health service listens."""
    episodes: int = 25
    """Episodes of one evaluation, at least 1."""
    num_envs: int = 25
    """Environments stepped together, at least 1."""
    test_episodes: int = 0
    """Episodes of `tidemill evaluate`; 0: as many as `episodes`."""
    policy: Literal["greedy", "epsilon", "sampled"] = "greedy"
    """`greedy`: the deterministic policy; `epsilon`: with occasional random actions (discrete actions only);
    `sampled`: with its exploration noise (continuous actions only)."""
    epsilon: float | None = None
    """Probability of a random action with `policy: epsilon`, 0 to 1; none takes `agent.evaluation_epsilon`."""
    noop_max: int | None = None
    """Atari: most frames without action at the start of an evaluation episode; none takes `env.noop_max`."""
    seed: int = 10_000
    """First seed of the evaluation's environments; never a training seed."""
    min_interval_s: float = 5.0
    """Least time from the start of one evaluation to the next, in seconds."""
    start_env_steps: int = 0
    """Agent decisions before the first evaluation; earlier parameters are not evaluated."""
    every_env_steps: int = 0
    """Agent decisions from one evaluation to the next: the first version published after each multiple is evaluated, so
    that runs of several seeds are measured at the same places. 0: by `min_interval_s` alone, at the pace of the
    machine."""
    last_timeout_s: float = 120.0
    """Longest time for the evaluation that ends a run, in seconds; twice that of the longest evaluation before, if that
    is more. The run then ends with the scores it has."""
    confirm_episodes: int = 100
    """Fresh episodes on other seeds whose mean must reach the target too before the run ends; 0 skips."""
    video: bool = True
    """Whether a video of the best policy is recorded at the end."""
    video_max_steps: int = 2_000
    """Longest video, in agent decisions."""
    threads: int = 1
    """Threads torch computes with, at least 1."""
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
    """`tidemill train`: the processes of one machine."""

    actors: int = 1
    """Actor processes to start, at least 0; more may join by hand."""
    replay: bool = True
    """Whether to start the run's replay service. Without, `cluster.replay` says where one is, which several runs may
    share if each has its own `table.name` and `actor.id`."""
    inference: int = 0
    """Inference services that pass through the network for the actors; 0: each actor does so itself."""
    learners: int = 1
    """Learner processes that train together, at least 1, each with a share of the batch and a GPU if there is one."""
    actor_nice: int = 0
    """Niceness added to actors, 0 to 19: on few cores the learner then gets the time it needs first."""
    evaluator_nice: int = 0
    """Niceness added to the evaluator, 0 to 19."""
    max_restarts: int = 5
    """How often one service may be restarted within ten minutes before the run fails."""
    restart_backoff_s: float = 1.0
    """Pause before the first restart, in seconds; doubled for each further one, up to 30."""
    start_timeout_s: float = 120.0
    """How long a service may take to become healthy, in seconds."""
    frozen_timeout_s: float = 30.0
    """How long a service that was healthy may leave health checks unanswered before it is killed and restarted, in
    seconds. A service that does not answer is reported within ten seconds."""
    fork_services: bool = True
    """Whether services are forked from one process that has imported torch, instead of importing it each: they start,
    and start again, without those seconds, and share its memory. On Linux alone."""
    stop_timeout_s: float = 20.0
    """How long a service may take to end after SIGTERM before it is killed, in seconds."""
    log_max_mib: float = 16.0
    """Longest log of a process, in MiB. What is longer becomes `NAME.log.1`, in place of what was there before. 0 means
    no limit."""
    loggers: tuple[str, ...] = ()
    """Where `tidemill log` sends the run's curves while it trains: `wandb`, `mlflow`, or `module:name` of a
    tidemill.RunLogger. The run's own files and TensorBoard are always written."""
    view: Literal["auto", "live", "plain", "json", "quiet"] = "auto"
    """`live` redraws a table, `plain` prints lines, `json` prints one JSON object per line for scripts, `quiet` prints
    only warnings and the result; `auto` is live on a terminal and plain elsewhere."""
    view_every_s: float = 1.0
    """Seconds between two updates of the live view."""
    status_page: bool = True
    """Whether a web page shows the run, to browsers of this machine only; its address is printed at the start. Whoever
    is logged in to the machine can look at it; pause, resume, checkpoint and stop need that address."""
    status_page_port: int = 0
    """Port of that page; 0 takes a free one."""
    endpoints: tuple[str, ...] = ()
    """For `tidemill page` of services that something else started: HOST:PORT of their metrics, separated by spaces. A
    name stands for as many processes as it has addresses. The page then shows actors and evaluator, restarts and logs,
    too."""

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
