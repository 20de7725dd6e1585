"""A whole run of `tidemill train` whose processes are killed one after another, and in the end its launcher."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.chaos.fault_report import FaultReport, pause
from tests.support.launched import Launched, launched, learner_of, services_of, tidemill
from tests.support.small_run import small_run
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import TidemillError
from tidemill.learner.status import LearnerState, LearnerStatus

_SERVICES = ("actor", "evaluator", "learner", "paramserver", "replay")
_LONGEST_PAUSE_S = 3.0
_AFTER_RESTART = 50
"""Decisions or updates that are more than what was on its way when a process died."""
_RUN = small_run(
    table={"max_items": 20_000},
    learner={"checkpoint_every_s": 2.0},
    actor={"max_env_steps_per_s": 200.0},
    evaluator={"min_interval_s": 1.0},
    launcher={"max_restarts": 10_000, "restart_backoff_s": 0.1},
)


def kill_services(folder: Path, kills: int, seed: int) -> list[FaultReport]:
    """Kill each kind of process so many times, in random order; return what became of it for each kind.

    After each, what the process is for must continue: decisions are stored, versions evaluated and published, updates
    taken. Of these steps none that a checkpoint holds may be lost, which is what `acknowledged` counts.
    """
    reports = {name: FaultReport(f"{name} of a run killed") for name in _SERVICES}
    order = [name for name in _SERVICES for _ in range(kills)]
    random.Random(seed).shuffle(order)
    rng = random.Random(seed)
    with _run(folder) as (cluster, watched):
        for name in order:
            pause(rng.uniform(0.0, _LONGEST_PAUSE_S))
            _kill_one(cluster, watched, name, reports[name])
        ends_cleanly(cluster, folder)
    for report in reports.values():
        report.acknowledged = watched.checkpoint_steps
        report.acknowledged_lost += watched.fallen
    return list(reports.values())


def kill_launcher(folder: Path, kills: int, seed: int) -> FaultReport:
    """Kill the launcher and resume: its children end by themselves, and the run continues from its checkpoint."""
    rng, report = random.Random(seed), FaultReport("launcher killed, then `tidemill resume`")
    started = ["train", "--config", str(_config(folder))]
    for _ in range(kills):
        with launched(*started) as cluster, watching(folder / "run") as watched:
            watched.until_training()
            reached = watched.checkpoint_steps
            pause(rng.uniform(0.0, _LONGEST_PAUSE_S))
            began_s = time.monotonic()
            cluster.send(signal.SIGKILL)
            cluster.process.wait(WAIT_S)
            report.time_recovery(began_s, lambda c=cluster: not services_of(c.process.pid), "the children end")  # type: ignore[misc]
        report.acknowledged += reached
        report.acknowledged_lost += watched.fallen
        started = ["resume", str(folder / "run")]
    with launched(*started) as cluster, watching(folder / "run") as watched:
        watched.until_training()
        report.acknowledged_lost += max(reached - watched.newest.learner_steps, 0)
        ends_cleanly(cluster, folder)
    return report


def _config(folder: Path) -> Path:
    file = folder / "chaos.yaml"
    file.write_text(yaml.safe_dump(_RUN | {"run": {"name": "run", "root": str(folder)}}))
    return file


class Watched:
    """The learner's status of a run, polled all the time by a separate thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.newest = LearnerStatus()
        self.checkpoint_steps = 0
        self.fallen = 0
        """How often a count was less than what had been kept."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def until_training(self) -> None:
        """Wait until updates are taken and a checkpoint is written."""
        wait_until(lambda: self.newest.learner_steps > 0 and self.checkpoint_steps > 0, "the run trains")

    def close(self) -> None:
        """End."""
        self._ended.set()
        self._thread.join(WAIT_S)

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            with contextlib.suppress(TidemillError, OSError), learner_of(self._folder) as learner:
                while not self._ended.wait(0.05):
                    self._see(learner.get_status())

    def _see(self, status: LearnerStatus) -> None:
        self.fallen += status.learner_steps < self.checkpoint_steps and status.learner_steps > 0
        self.checkpoint_steps = max(self.checkpoint_steps, status.checkpoint_steps)
        self.newest = status


@contextmanager
def watching(folder: Path) -> Iterator[Watched]:
    """Watch the learner of a run while the block runs."""
    watched = Watched(folder)
    try:
        yield watched
    finally:
        watched.close()


@contextmanager
def _run(folder: Path) -> Iterator[tuple[Launched, Watched]]:
    config = _config(folder)
    with launched("train", "--config", str(config)) as cluster, watching(folder / "run") as watched:
        watched.until_training()
        cluster.until("evaluation  mean")
        yield cluster, watched


def _kill_one(cluster: Launched, watched: Watched, name: str, report: FaultReport) -> None:
    pid = cluster.children()[name]
    began_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: cluster.children().get(name) != pid, f"the {name} is gone", longest_pause_s=0.02)
    before = watched.newest
    if name == "learner":
        watched.newest = before = LearnerStatus()  # nothing that it says from now on is of the one that was killed
    achieved: dict[str, Callable[[], bool]] = {
        "actor": lambda: watched.newest.env_steps > before.env_steps + _AFTER_RESTART,
        "evaluator": lambda: any("evaluation  mean" in line for line in cluster.lines[seen:]),
        "learner": lambda: watched.newest.learner_steps > 0 and watched.newest.state is LearnerState.TRAINING,
        "paramserver": lambda: watched.newest.params_version > before.params_version + 1,
        "replay": lambda: watched.newest.learner_steps > before.learner_steps + _AFTER_RESTART,
    }
    wait_until(lambda: cluster.children().get(name, pid) != pid, f"another {name} is started", longest_pause_s=0.02)
    seen = len(cluster.lines)
    report.time_recovery(began_s, achieved[name], f"the run continues after its {name} was killed")


def ends_cleanly(cluster: Launched, folder: Path) -> None:
    """End the run as a person does: with 0, no process left, and a log without a corrupt byte."""
    cluster.send(signal.SIGINT)
    assert cluster.wait() == 0, cluster.output
    assert cluster.children() == {}
    tidemill("replay", "inspect", str(folder / "run" / "replay" / "0"))
