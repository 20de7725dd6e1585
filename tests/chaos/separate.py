"""A run whose processes a test starts, stops and starts again, each with a proxy for each server that it uses."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.chaos.fault_report import FaultReport
from tests.support.free_ports import free_address
from tests.support.learner_cluster import Process, is_serving
from tests.support.proxy import Proxy
from tests.support.scraped import scrape
from tests.support.waiting import wait_until
from tidemill.errors import TidemillError
from tidemill.learner.client import LearnerClient
from tidemill.params.client import ParamsClient
from tidemill.replay import export_table
from tidemill.replay.client import ReplayClient
from tidemill.replay.transfer.exported_table import ExportedTable
from tidemill.scores import read_scores

SERVICES = ("replay", "paramserver", "learner", "actor", "evaluator")
LINKS = {
    "actor-replay": "actor and replay",
    "learner-replay": "learner and replay",
    "learner-params": "learner and parameter server",
    "actor-params": "actor and parameter server",
    "evaluator-params": "evaluator and parameter server",
}
_TABLE = "replay"
_CHUNK = 16
_EPISODE = 5
"""Decisions of an episode of the environment, whose observation is (episode, step), both from 0."""
_RUN: dict[str, Any] = {
    "env": {"id": "tests.support.envs:counting", "num_envs": 1},
    "agent": {
        "algorithm": "dqn",
        "network": "mlp",
        "hidden_sizes": [16],
        "dueling": False,
        "batch_size": 16,
        "n_step": 1,
    },
    "table": {"min_size": 50, "max_items": 1_000_000, "chunk_length": _CHUNK},
    "learner": {"updates_per_env_step": 0.25, "publish_every": 10, "checkpoint_every_s": 2.0},
    "actor": {"id": "actor-0", "max_env_steps_per_s": 200.0},
    "evaluator": {"episodes": 1, "num_envs": 1, "min_interval_s": 0.5, "video": False},
}


class SeparateRun:
    """Replay service with a log, parameter server, learner, actor and evaluator.

    Attributes:
        proxies: What lies between two processes, by the name of the link.
    """

    def __init__(
        self, folder: Path, stack: ExitStack, variables: Callable[[str], Mapping[str, str]] = lambda _: {}
    ) -> None:
        """Start all, and wait until every link is in use; they end with the stack.

        Args:
            folder: Of the run and its logs.
            stack: Ends the processes.
            variables: Returns further environment variables of a process, by its name.
        """
        self._folder, self._stack, self._variables = folder, stack, variables
        self._direct = {name: free_address() for name in ("replay", "params", "learner")}
        self._config = folder / "separate.yaml"
        self._config.write_text(yaml.safe_dump(self._settings()))
        self.proxies = {name: stack.enter_context(Proxy(self._direct[name.partition("-")[2]])) for name in LINKS}
        self._replay = stack.enter_context(ReplayClient(self._direct["replay"]))
        self._params = stack.enter_context(ParamsClient(self._direct["params"]))
        self._learner = stack.enter_context(LearnerClient(self._direct["learner"]))
        self._versions: list[int] = []
        self._lives: list[int] = []
        self._processes: dict[str, Process] = {}
        for name in SERVICES:
            self._start(name)
        for link in LINKS:
            wait_until(lambda k=link: self.reached(k) > 0, f"{link} is in use", describe=self._logs)  # type: ignore[misc]

    def reached(self, link: str) -> float:
        """Return a count that grows while the two processes of a link work together; 0 before they do."""
        counts: dict[str, Callable[[], float]] = {
            "actor-replay": lambda: self._replay.describe_table(_TABLE).inserts,
            "learner-replay": lambda: self._learner.get_status().learner_steps,
            "learner-params": self._newest_version,
            "actor-params": lambda: self._actor_metric("tidemill_actor_params_version"),
            "evaluator-params": lambda: len(read_scores(self._folder / "run" / "scores.csv")),
        }
        for name, process in self._processes.items():
            assert process.is_running, f"{name} has ended:\n{process.text()}"
        try:
            return counts[link]()
        except (TidemillError, OSError):  # it starts
            return 0

    def restart(self, name: str) -> None:
        """End a process with SIGTERM, which it must do well, and start it again."""
        self._stop(name)
        self._start(name)

    def compare(self, reports: Sequence[FaultReport]) -> None:
        """Stop the actor, hold what the table has against what the environment gave, and stop the others.

        An actor that the rate limiter holds back stops with chunks that nobody has acknowledged: those may be missing.
        """
        self._stop("actor")
        left = re.findall(r"stopped .*unacknowledged_chunks=(\d+)", self._processes["actor"].text())
        acknowledged = [made - _CHUNK * int(chunks) for made, chunks in zip(self._lives, left, strict=True)]
        scores = read_scores(self._folder / "run" / "scores.csv")
        fallen = _falls(self._versions) + _falls([score.params_version for score in scores])
        export_table(self._direct["replay"], _TABLE, self._folder / "exported")
        for report in reports:
            report.acknowledged_lost += fallen
            _compare_steps(report, ExportedTable(self._folder / "exported"), acknowledged)
        for name in ("evaluator", "learner", "paramserver", "replay"):
            self._stop(name)

    def _settings(self) -> dict[str, Any]:
        addresses = {name: {"address": address} for name, address in self._direct.items()}
        return _RUN | {
            "run": {"name": "run", "root": str(self._folder)},
            "replay": {"server": addresses["replay"], "storage": {"folder": str(self._folder / "log")}},
            "paramserver": {"server": addresses["params"]},
            "learner": {"server": addresses["learner"], **_RUN["learner"]},
        }

    def _newest_version(self) -> float:
        self._versions.append(max((one.version for one in self._params.list_versions().versions), default=0))
        return self._versions[-1]

    def _actor_metric(self, name: str) -> float:
        listening = re.findall(r"listening .*metrics=(\S+)", self._processes["actor"].text())
        if len(listening) <= len(self._lives):  # not yet, in this life
            return 0.0
        return scrape(listening[-1]).get(name, 0.0)

    def _start(self, name: str) -> None:
        words = []
        for server in ("replay", "params"):
            if proxy := self.proxies.get(f"{name}-{server}"):
                words += [f"--cluster.{server}", proxy.address]
        log = self._folder / f"{name}.log"
        arguments = ["--config", str(self._config), *words]
        process = Process(f"tidemill.services.{name}", arguments, log, self._variables(name))
        self._stack.callback(process.close)
        self._processes[name] = process
        if address := self._direct.get(name.replace("paramserver", "params")):
            wait_until(lambda: is_serving(address) or not process.is_running, f"{name} serves")

    def _stop(self, name: str) -> None:
        process = self._processes[name]
        if name == "actor":
            self._lives.append(int(self._actor_metric("tidemill_actor_env_steps_total")))
        process.signal(signal.SIGTERM)
        assert process.wait() == 0, process.text()

    def _logs(self) -> str:
        return "\n".join(process.text() for process in self._processes.values())


def _falls(versions: Sequence[int]) -> int:
    """Return how often a version was less than the one before."""
    return sum(later < earlier for earlier, later in pairwise(versions))


def _compare_steps(report: FaultReport, table: ExportedTable, lives: Sequence[int]) -> None:
    """Hold the items of a table against the environment, which every start of the actor began from scratch.

    Args:
        report: Where the differences are counted.
        table: All that came of it; its items are numbered by their first step since the environment was made.
        lives: How many decisions the actor had made at least, for each of its starts, without those in chunks that were
            not acknowledged.
    """
    rows = table.rows(0, table.steps)
    first, last = table.first_rows, table.first_rows + table.lengths - 1
    episode, step = rows["observation"][first].astype(np.int64).T
    found = Counter((episode * _EPISODE + step).tolist())
    continued = rows["observation"][last] == np.stack([episode, step + 1], axis=1)
    report.acknowledged += len(first)
    for number in range(max(*lives, *found) + 1):
        least = sum(number < made - _CHUNK for made in lives)  # what fills no chunk is not sent
        report.acknowledged_lost += max(0, least - found[number])
        report.duplicates += max(0, found[number] - len(lives))
    report.unknown += int(((step < 0) | (step >= _EPISODE)).sum())
    report.altered += int((rows["reward"][first] != step + 1).sum() + (~continued.all(axis=1)).sum())
    if len(lives) == 1:
        report.acknowledged_lost += max(found) + 1 - len(found)
