"""Runs in lock-step at length, beside free-running ones: `python -m tests.process.lock_step_runs CONFIG.yaml`.

It prints the digest of two runs with the same seed and of a third whose learner, actors and replay service are killed
again and again, and the rates of all beside a free run's. tests/process/test_lock_step.py does so for seconds.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.lock_step import lock_step_cluster

_BOUND_S = 3600.0  # for each part of a run
_TARGETS = ("actor-1", "replay", "learner", "actor-0")


def run(folder: Path, settings: Mapping[str, Any], updates: int, kills: int) -> tuple[str, float, float]:
    """Return the digest after so many updates, how many a second there were, and the seconds of processors.

    The first tenth and the last twentieth of the steps count only for the processors' time, not for the rate.

    Args:
        folder: Of the run; made here.
        settings: Of all processes.
        updates: Updates.
        kills: How many processes are killed on the way.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    limited = {**settings, "run": {**settings.get("run", {}), "max_learner_steps": updates}}
    with lock_step_cluster(folder, limited) as cluster:
        cluster.start_all()
        cluster.reach(updates // 10, _BOUND_S)
        started = time.monotonic()
        for number in range(kills):
            cluster.reach(updates // 10 + updates * 8 * number // (10 * kills), _BOUND_S)
            name = _TARGETS[number % len(_TARGETS)]
            cluster.kill(name)
            cluster.start(name)
        cluster.reach(updates * 19 // 20, _BOUND_S)
        rate = updates * 17 / 20 / (time.monotonic() - started)
        learner_steps, digest = cluster.digest()
    assert learner_steps == updates
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return digest, rate, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run them all in turns and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    settings = yaml.safe_load(arguments.config.read_text())
    free = {**settings, "run": {**settings.get("run", {}), "deterministic": False}}
    cases = {"lock-step": (settings, 0), "free": (free, 0), "lock-step 2": (settings, 0), "free 2": (free, 0)}
    cases["killed"] = (settings, arguments.kills)
    for name, (config, kills) in cases.items():
        if arguments.only and not name.startswith(arguments.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            digest, rate, used_s = run(Path(folder) / "cluster", config, arguments.updates, kills)
        sys.stdout.write(f"{name:12} {rate:8.1f} updates/s {used_s:8.1f} s of processors  {digest}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
