"""Savings of forking the services of a run: time and processor time of a start and of a restart, and memory.

Runs with `launcher.fork_services` and without it are started in turns, to the moment when all services serve; then an
actor and the learner are killed, to the moment when each serves again. Memory is the proportional share (PSS) of all
processes together, in which what several share counts once.

    python -m benchmarks.start [--config quickstart] [--actors 1 4] [--rounds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import TICK_S, memory_mib
from benchmarks.rows import Row, row, write

_START_S = 120.0
_STOP_S = 60.0
_KILLED = ("actor-0", "learner")


@dataclass(frozen=True)
class _Start:
    """One run's start."""

    seconds: float
    processor_s: float
    memory_mib: float
    restart_s: dict[str, float]


def main() -> None:
    """Measure and print; write benchmarks/results/start.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="quickstart", help="settings of the run")
    parser.add_argument("--actors", nargs="+", type=int, default=[1, 4], help="numbers of actors")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of measurements")
    arguments = parser.parse_args()
    write("start", [each for actors in arguments.actors for each in _rows(arguments.config, actors, arguments.rounds)])


def _rows(config: str, actors: int, rounds: int) -> list[Row]:
    forked: list[_Start] = []
    started: list[_Start] = []
    for _ in range(rounds):
        forked.append(_measure(config, actors, "--launcher.fork-services"))
        started.append(_measure(config, actors, "--launcher.no-fork-services"))
    of = f"services forked against started, {actors} actors"
    rows = [
        row(
            f"from the command to all serving, {of}",
            "s",
            *([each.seconds for each in side] for side in (forked, started)),
        ),
        row(
            f"processor time to there, {of}", "s", *([each.processor_s for each in side] for side in (forked, started))
        ),
        row(f"memory there, {of}", "MiB", *([each.memory_mib for each in side] for side in (forked, started))),
    ]
    for name in _KILLED:
        times = ([each.restart_s[name] for each in side] for side in (forked, started))
        rows.append(row(f"from the kill of {name} to its serving again, {of}", "s", *times))
    return rows


def _measure(config: str, actors: int, option: str) -> _Start:
    with tempfile.TemporaryDirectory(prefix="tm-") as root, _launched(config, actors, option, root) as (pid, lines):
        began_s = time.monotonic()
        waited = {"replay", "paramserver", "learner", "evaluator", *(f"actor-{index}" for index in range(actors))}
        while waited:
            waited.discard(_next_ready(lines))
        seconds, processor_s = time.monotonic() - began_s, _processor_s(pid)
        memory = sum(map(memory_mib, (pid, *_children(pid))))
        pids = {
            "learner": _pid(pid, "tidemill.services.learner", ""),
            "actor-0": _pid(pid, "tidemill.services.actor", "0"),
        }
        restart_s = {}
        for name in _KILLED:
            began_s = time.monotonic()
            os.kill(pids[name], signal.SIGKILL)
            while _next_ready(lines) != name:
                pass
            restart_s[name] = time.monotonic() - began_s
        return _Start(seconds, processor_s, memory, restart_s)


@contextlib.contextmanager
def _launched(config: str, actors: int, option: str, root: str) -> Iterator[tuple[int, Iterator[str]]]:
    words = ["train", "--config", config, "--run.root", root, "--launcher.actors", str(actors), option]
    words += [
        "--launcher.view",
        "plain",
        "--launcher.restart-backoff-s",
        "0.01",
        "--evaluator.start-env-steps",
        "1000000",
    ]
    command = [sys.executable, "-m", "tidemill.services.launcher", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launcher:
        assert launcher.stdout is not None
        try:
            yield launcher.pid, iter(launcher.stdout.readline, "")
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.communicate(timeout=_STOP_S)


def _next_ready(lines: Iterator[str]) -> str:
    """Return the next service that serves."""
    deadline_s = time.monotonic() + _START_S
    for line in lines:
        if line.rstrip().endswith(" is ready"):
            return line.split()[-3]
        if time.monotonic() > deadline_s:
            break
    raise SystemExit("the run ended, or did not start in time")


def _children(pid: int) -> list[int]:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [int(word) for word in words]


def _processor_s(launcher_pid: int) -> float:
    """Return the processor time of a launcher and its children, with what those have waited for (proc(5))."""
    total = 0
    for pid in (launcher_pid, *_children(launcher_pid)):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        total += sum(int(field) for field in fields[11:15])
    return total * TICK_S


def _pid(launcher_pid: int, module: str, index: str) -> int:
    for pid in _children(launcher_pid):
        words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
        if module in words and (not index or words[words.index("--actor.index") + 1] == index):
            return pid
    raise SystemExit(f"no process of {module} is there")


if __name__ == "__main__":
    main()
