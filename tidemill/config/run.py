"""Settings that all processes of a run share."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidemill.rpc.addresses import CLIENT, is_client_address
from tidemill.settings.check import SAFE_NAME, check, check_at_least, check_positive, is_safe_name

RESTORED = "restored.txt"
"""Beside the checkpoints: what the learner's newest start restored, in words, until a launcher has shown it."""
RANK_FAILURE = "rank_failure.txt"
"""In a run's folder: how one of several learners of a machine failed last, in words; all were started again."""


@dataclass(frozen=True)
class RunSettings:
    """Name and folder of the run, and when it ends."""

    name: str = "run"
    """Name of the run: letters, digits, `_`, `-` and `.`, a letter or digit first; at most 128 characters."""
    root: str = "runs"
    """Folder of all runs. This run is kept in ROOT/NAME."""
    seed: int = 1
    """Seed of networks, exploration and environments. Evaluation uses separate seeds."""
    continued_from: int | None = None
    """Newest version of the parameters when the run was started or resumed, 0 for a new run. The launcher sets it.
    None: actors and services with simulators ask the parameter server when they start. Their seeds depend on it where
    the replay service does not know them from before."""
    target_return: float | None = None
    """Mean evaluation return at which the run ends as solved. `evaluator.confirm_episodes` further episodes must
    confirm it. None: no target."""
    max_env_steps: int = 0
    """Agent decisions, over all actors, after which the run ends. 0: no limit."""
    max_learner_steps: int = 0
    """Updates after which the run ends. 0: no limit."""
    max_wall_s: float = 0.0
    """Seconds of training after which the run ends. 0: no limit. An evaluation in progress is then cancelled, and the
    newest parameters are evaluated instead."""
    deterministic: bool = False
    """Run in lock-step, so that the same seed always gives the same parameters (docs/lock-step.md). In each round all
    actors play `round_steps` steps, then the learner makes the updates that are due. The processes wait for each other,
    so the run is slower."""
    round_steps: int = 64
    """Steps that each environment plays in one round of a deterministic run. Must be a multiple of
    `table.chunk_length`. Larger rounds are faster; smaller ones follow a free-running cluster more closely."""
    supervisor: Literal["launcher", "engine", "job"] = "launcher"
    """Program that restarts the learner and the evaluator. `launcher`: `tidemill train`, which also stops them; both
    exit with 0. `engine`: a container engine that restarts every container that ends; at the end of the run they idle
    until they are stopped. `job`: a scheduler that restarts processes that fail; they exit with 0 at the end of the
    run, also by `tidemill ctl stop`, with 2 if training has diverged, and with 143 when interrupted, or 1 if the
    learner's last checkpoint is lost then. With `engine` and `job` they ask the parameter server whether the run is
    over. A process that starts after the end of the run does nothing."""

    def __post_init__(self) -> None:
        check(is_safe_name(self.name), "run.name", self.name, SAFE_NAME)
        check(0 <= self.seed < 2**63, "run.seed", self.seed, "0 to 2**63 - 1")
        check(
            self.continued_from is None or self.continued_from >= 0, "run.continued_from", self.continued_from, ">= 0"
        )
        check_at_least(0, "run", self, "max_env_steps", "max_learner_steps", "max_wall_s")
        check_at_least(1, "run", self, "round_steps")

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(os.path.expanduser(self.root)) / self.name

    @property
    def params_folder(self) -> Path:
        """Where the parameter server keeps versions, and where whoever has the run's folder mounted reads them."""
        return self.folder / "params"

    @property
    def end_tag(self) -> str:
        """Tag at the parameter server that marks the run as over, with this target and these limits."""
        ends = (self.target_return, self.max_env_steps, self.max_learner_steps, self.max_wall_s)
        return f"ended-{hashlib.sha256(repr(ends).encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class ClusterSettings:
    """Addresses of the run's services: `host:port`, `dns:///name:port` or `unix:///path`."""

    replay: tuple[str, ...] = ("127.0.0.1:7401",)
    """Address of the replay service, or of each of its shards, or one `dns:///name:port` for all shards."""
    replay_shards: int = 0
    """Number of shards that share the table's capacity and limits. 0: as many as `cluster.replay` lists. Set it if one
    `dns:///` name stands for all shards."""
    params: str = "127.0.0.1:7402"
    """Address of the parameter server."""
    learner: str = "127.0.0.1:7403"
    """Address of the learner's control service."""
    inference: tuple[str, ...] = ()
    """Addresses of inference services that compute actions for the actors. Actors are spread across them and fail over
    to the next. Empty: each actor runs the network itself."""
    connect_timeout_s: float = 60.0
    """Seconds that a starting process waits for a service it needs. It then exits with an error that names the
    service."""

    def __post_init__(self) -> None:
        for name in ("params", "learner"):
            check(is_client_address(getattr(self, name)), f"cluster.{name}", getattr(self, name), CLIENT)
        for name in ("replay", "inference"):
            for address in getattr(self, name):
                check(is_client_address(address), f"cluster.{name}", address, CLIENT)
        _check_shards(self.replay)
        named = all(self.inference) and len(set(self.inference)) == len(self.inference)
        check(named, "cluster.inference", list(self.inference), "addresses that all differ")
        check_at_least(0, "cluster", self, "replay_shards")
        check_positive("cluster", self, "connect_timeout_s")

    @property
    def shard_count(self) -> int:
        """Over how many replay shards the table is divided."""
        return self.replay_shards or len(self.replay)


def _check_shards(addresses: tuple[str, ...]) -> None:
    name_alone = len(addresses) == 1 or not any(address.startswith("dns:") for address in addresses)
    is_valid = bool(addresses) and all(addresses) and len(set(addresses)) == len(addresses) and name_alone
    check(is_valid, "cluster.replay", list(addresses), "addresses that all differ, or a single dns:/// name")


@dataclass(frozen=True)
class LogSettings:
    """Logging of a process, to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""
    json: bool = False
    """Write one JSON object per line, for a log collector."""
    trace_every: int = 0
    """Chunks of steps per traced chunk: with 1000 one chunk in a thousand is traced. A trace follows the chunk from the
    actor's append to the updates that use it (OpenTelemetry). 0 disables traces."""
    trace_to: str = ""
    """Collector of the traces, `http://host:port` or `https://host:port`, usually on port 4318 (OTLP over HTTP). Empty:
    one file per process in the run's `traces` folder."""

    def __post_init__(self) -> None:
        check_at_least(0, "log", self, "trace_every")
        is_url = not self.trace_to or self.trace_to.startswith(("http://", "https://"))
        check(is_url, "log.trace_to", self.trace_to, "http://host:port, https://host:port or empty")
