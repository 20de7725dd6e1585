"""A run of the launcher, each part of which can be killed, frozen, stopped or cut off."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.chaos.cluster import ends_cleanly, watching
from tests.chaos.fault_report import FaultReport, pause
from tests.chaos.memory import MemoryRecord
from tests.chaos.network import FAULTS
from tests.support.free_ports import free_address
from tests.support.launched import Launched, launched
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tidemill.errors import TidemillError
from tidemill.learner.status import LearnerStatus
from tidemill.replay import export_table
from tidemill.replay.client import ReplayClient
from tidemill.replay.transfer.exported_table import ExportedTable
from tidemill.scores import read_scores

_SERVICES = ("replay", "paramserver", "learner", "actor", "evaluator")
_LINKS = ("replay", "params")
_TABLE = "replay"
_LONGEST_FAULT_S = 12.0
_FROZEN_S = 15.0
"""How long a service may leave health checks unanswered before the launcher starts it again."""
_AFTER_FAULT = 20
"""Decisions that are more than what was on its way."""
_WARM_UP_S = 60.0

Fault = Callable[[random.Random], None]


class SoakRun:
    """The run, and what can be done to it.

    Attributes:
        folder: Of the run.
    """

    def __init__(self, folder: Path, stack: ExitStack, settings: Mapping[str, Any], report: FaultReport) -> None:
        """Start it, and wait until it trains; it ends with the stack.

        Args:
            folder: Its folder's parent.
            stack: Ends it.
            settings: Of the run. It does not end at its `run.target_return`.
            report: Where faults are counted and timed.
        """
        self.folder = folder / "run"
        self._stack, self._report = stack, report
        self._target, self._envs = settings["run"]["target_return"], settings["env"]["num_envs"]
        self._direct = {name: free_address() for name in _LINKS}
        self._proxies = {name: stack.enter_context(Proxy(address)) for name, address in self._direct.items()}
        self._replay = stack.enter_context(ReplayClient(self._direct["replay"]))
        self._lives = self._inserts = self._newest_version = 0
        config = folder / "soak.yaml"
        config.write_text(yaml.safe_dump(self._settings(settings)))
        self._cluster = self._launched("train", "--config", str(config))
        self._memory = MemoryRecord(self._pids)
        stack.callback(self._memory.close)
        self._watched = stack.enter_context(watching(self.folder))
        self._watched.until_training()

    def suffer(self, minutes: float, rng: random.Random, longest_pause_s: float) -> None:
        """Cause faults for so many minutes; each is counted and its recovery timed."""
        began_s, counts = time.monotonic(), Counter[str]()
        for name, fault in _shuffled(rng, list(self._faults)):
            if time.monotonic() - began_s > minutes * 60.0:
                break
            pause(rng.uniform(0.0, longest_pause_s))
            fault(rng)
            ended_s = time.monotonic()
            self._watched.newest = LearnerStatus()
            wait_until(
                lambda: self._watched.newest.learner_steps,
                f"the learner answers after {name}",
                describe=lambda: self._cluster.output,
            )
            base = self._watched.newest
            self._report.time_recovery(ended_s, partial(self._goes_on, base), f"the run goes on after {name}")
            self._note(name, counts, time.monotonic() - began_s)
        self._report.figures |= {"minutes": round((time.monotonic() - began_s) / 60.0, 1), "faults": dict(counts)}

    def compare(self) -> None:
        """Hold the table's streams against each other, and end the run."""
        reached = [s for s in read_scores(self.folder / "scores.csv") if s.mean >= self._target]
        self._report.figures |= {
            "evaluations": len(read_scores(self.folder / "scores.csv")),
            "evaluations_at_target": len(reached),
            "first_at_target_min": round(reached[0].wall_s / 60.0, 1) if reached else None,
            "learner_steps": self._watched.newest.learner_steps,
            "memory": self._memory.figures(_WARM_UP_S),
        }
        export_table(self._direct["replay"], _TABLE, self.folder.parent / "exported")
        table = ExportedTable(self.folder.parent / "exported")
        streams = int((~np.asarray(table.continues, bool)).sum())
        self._report.acknowledged = self._replay.describe_table(_TABLE).inserts
        self._report.duplicates += table.items - len(np.unique(table.first_rows))
        self._count_lives()
        self._report.acknowledged_lost += max(0, streams - self._envs * self._lives)
        self._report.figures["actor_lives"] = self._lives
        self._report.acknowledged_lost += self._watched.fallen
        ends_cleanly(self._cluster, self.folder.parent)

    @property
    def _faults(self) -> Iterator[tuple[str, Fault]]:
        for service in _SERVICES:
            yield f"{service} killed", partial(self._kill, service)
            yield f"{service} frozen", partial(self._freeze, service)
        for service in ("replay", "paramserver", "actor", "evaluator"):
            yield f"{service} restarted", partial(self._restart, service)
        for link in _LINKS:
            for kind in FAULTS:
                yield f"network of {link}: {kind}", partial(self._harm, link, kind)
        yield "a service frozen until it is replaced", self._hang
        yield "launcher stopped and resumed", partial(self._end_launcher, signal.SIGINT)
        yield "launcher killed and resumed", partial(self._end_launcher, signal.SIGKILL)

    def _kill(self, service: str, _rng: random.Random) -> None:
        self._signalled(service, signal.SIGKILL)

    def _restart(self, service: str, _rng: random.Random) -> None:
        self._signalled(service, signal.SIGTERM)

    def _hang(self, rng: random.Random) -> None:
        self._signalled(rng.choice(_SERVICES), signal.SIGSTOP)

    def _signalled(self, service: str, number: signal.Signals) -> None:
        """Send a signal, and wait until another process has taken the place of the one that got it."""
        pid = self._pid(service)
        os.kill(pid, number)
        cluster = self._cluster
        wait_until(lambda: cluster.children().get(service, pid) != pid, f"another {service} is started")

    def _freeze(self, service: str, rng: random.Random) -> None:
        pid = self._pid(service)
        os.kill(pid, signal.SIGSTOP)
        pause(rng.uniform(1.0, _FROZEN_S / 2))
        os.kill(pid, signal.SIGCONT)

    def _harm(self, link: str, kind: str, rng: random.Random) -> None:
        FAULTS[kind]([self._proxies[link]], rng, _LONGEST_FAULT_S)

    def _end_launcher(self, number: signal.Signals, _rng: random.Random) -> None:
        cluster = self._cluster
        cluster.send(number)
        code = cluster.wait()
        assert code == (0 if number == signal.SIGINT else -number), cluster.output
        wait_until(lambda: not cluster.children(), "the services end")
        self._count_lives()
        self._cluster = self._launched("resume", str(self.folder))

    def _launched(self, *words: str) -> Launched:
        return self._stack.enter_context(launched(*words))

    def _settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings by which clients reach each server by its proxy, and faults do not end the run."""
        sections = {name: dict(section) for name, section in settings.items()}
        del sections["run"]["target_return"]
        sections["run"] |= {"name": "run", "root": str(self.folder.parent)}
        sections["replay"] = {"server": {"address": self._direct["replay"]}}
        sections["paramserver"] = {"server": {"address": self._direct["params"]}}
        proxies = self._proxies
        sections["cluster"] = {"replay": [proxies["replay"].address], "params": proxies["params"].address}
        sections["launcher"] = {
            "view": "plain",
            "max_restarts": 10_000,
            "restart_backoff_s": 0.1,
            "frozen_timeout_s": _FROZEN_S,
            "status_page": False,
        }
        return sections

    def _count_lives(self) -> None:
        self._lives += sum("actor-0 is ready" in line for line in self._cluster.lines)

    def _pid(self, service: str) -> int:
        cluster = self._cluster
        wait_until(lambda: service in cluster.children(), f"there is a {service}")
        return cluster.children()[service]

    def _pids(self) -> dict[str, int]:
        found = self._cluster.children() | {"launcher": self._cluster.process.pid}
        return {name.rpartition(".")[2]: pid for name, pid in found.items()}

    def _goes_on(self, base: LearnerStatus) -> bool:
        now = self._watched.newest
        return (
            now.env_steps > base.env_steps + _AFTER_FAULT
            and now.learner_steps > base.learner_steps
            and now.params_version > base.params_version
        )

    def _note(self, name: str, counts: Counter[str], after_s: float) -> None:
        """Count a fault, and whatever fell below what it was after an earlier one."""
        counts[name.partition(":")[0] if name.startswith("network") else name] += 1
        try:
            inserts, version = self._replay.describe_table(_TABLE).inserts, self._watched.newest.params_version
        except TidemillError:  # it is being noticed that a frozen server answers again
            return
        self._report.acknowledged_lost += (inserts < self._inserts) + (version < self._newest_version)
        self._inserts, self._newest_version = inserts, version
        scores = read_scores(self.folder / "scores.csv")
        best = max((score.mean for score in scores), default=float("nan"))
        recovery_s = self._report.recovery_s[-1]
        sys.stderr.write(
            f"{after_s / 60:.1f} min  {name}  on again after {recovery_s:.1f} s  {inserts} inserts  best {best:.0f}\n"
        )
        sys.stderr.flush()


def _shuffled(rng: random.Random, faults: list[tuple[str, Fault]]) -> Iterator[tuple[str, Fault]]:
    """Yield all of them in random order, again and again."""
    while True:
        yield from rng.sample(faults, len(faults))
