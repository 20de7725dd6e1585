"""Carries a plan out: the cluster once for each seed, then a test of what it learned, and the peer beside it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from benchmarks.learn.atomic import write_json
from benchmarks.learn.plan import RESULTS, Plan
from benchmarks.learn.processes import Processes
from benchmarks.learn.ran import read_json, versions_to_test
from benchmarks.rows import machine
from tidemill.errors import ConfigError
from tidemill.installation import versions

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""
_GRACE_S = 600.0
"""Seconds a run may take beyond its own limit, for start, last evaluation, confirmation, video."""
_CLI = (sys.executable, "-m", "tidemill.services.launcher")


def carry_out(plan: Plan, seeds: Sequence[int], *, jobs: int, again: bool, limit_s: float) -> None:
    """Run every seed that has no result yet.

    Args:
        plan: What to run.
        seeds: Those of the plan that are meant.
        jobs: Runs at a time.
        again: Whether seeds that have a result are run again; the earlier run is moved aside.
        limit_s: Seconds one run may take, if its config has no limit of time.

    Raises:
        ConfigError: a seed has a result of other settings.
    """
    kept = [] if again else [seed for seed in seeds if _has_result(plan.run_folder(seed))]
    for seed in kept:
        _check_settings(plan, seed)
    plan.write()
    processes = Processes()
    works: list[Callable[[], None]] = []
    for seed in seeds:
        works.append(partial(_Seed(plan, seed, processes, limit_s).run, again=again, jobs=jobs))
        if plan.sb3:
            works.append(partial(_peer, plan, seed, processes, limit_s, again=again))
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(work) for work in works]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            _raise_first(futures)
        finally:
            processes.stop()


class _Seed:
    """The run of one seed."""

    def __init__(self, plan: Plan, seed: int, processes: Processes, limit_s: float) -> None:
        self._plan, self._seed, self._processes = plan, seed, processes
        self._limit_s = (plan.config.run.max_wall_s or limit_s) + _GRACE_S
        self._folder = plan.run_folder(seed)
        self._log = plan.root / f"seed-{seed}.log"

    def run(self, *, again: bool, jobs: int) -> None:
        """Train unless that was done, then test."""
        if again or not _has_result(self._folder):
            self._train(jobs, fresh=again or not self._can_continue())
        if not _has_result(self._folder):
            _say(f"seed {self._seed}: no result, see {self._log}")
            return
        for version in versions_to_test(self._folder):
            self._test(version)

    def _can_continue(self) -> bool:
        """True if an earlier command was stopped in the middle of this run, on the same commit and machine."""
        if not any((self._folder / "checkpoints").glob("*")) or self._plan.changed_settings(self._folder):
            return False
        was, now = read_json(self._folder.with_suffix(".json")), provenance()
        return not str(now["commit"]).endswith("-dirty") and all(was.get(key) == value for key, value in now.items())

    def _train(self, jobs: int, *, fresh: bool) -> None:
        _say(f"seed {self._seed}: {'runs' if fresh else 'continues'}, its output is in {self._log}")
        plan = self._plan
        if fresh:
            write_json(self._folder.with_suffix(".json"), provenance() | {"jobs": jobs})
            options = {"config": plan.config_file, "run.root": plan.root, "run.name": self._folder.name}
            words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
            command = [*_CLI, "train", *words, "--run.seed", str(self._seed), "--fresh"]
        else:
            command = [*_CLI, "resume", str(self._folder)]
        code = self._processes.run(command, self._log, self._limit_s)
        if code is None:
            _say(f"seed {self._seed}: stopped after {self._limit_s:g} s")
        elif code:
            _say(f"seed {self._seed}: ended with exit code {code}")

    def _test(self, version: int) -> None:
        """Play fresh episodes with a version, once."""
        episodes = self._plan.test_episodes
        file = self._folder / "evaluations" / f"learn-version-{version}-episodes-{episodes}.json"
        if not episodes or file.exists():
            return
        command = [*_CLI, "evaluate", str(self._folder), "--tag", str(version), "--episodes", str(episodes)]
        if self._processes.run([*command, "--output", str(file)], self._log, self._limit_s):
            _say(f"seed {self._seed}: version {version} could not be tested, see {self._log}")


def _peer(plan: Plan, seed: int, processes: Processes, limit_s: float, *, again: bool) -> None:
    """Train Stable-Baselines3 with the same seed, as long."""
    folder, log = plan.peer_folder(seed), plan.root / f"sb3-seed-{seed}.log"
    if _has_result(folder) and not again:
        return
    _move_aside(folder)  # its result or tests would be taken for those of the new run
    _say(f"seed {seed}: Stable-Baselines3 runs, its output is in {log}")
    write_json(folder.with_suffix(".json"), provenance())
    options = {
        "config": plan.config_file,
        "seed": seed,
        "steps": plan.config.run.max_env_steps,
        "every": plan.peer_every,
        "test-episodes": plan.test_episodes,
        "output": folder,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    environment = {"PYTHONPATH": plan.sb3, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.learn.peer", *words]
    code = processes.run(command, log, limit_s + _GRACE_S, environment)
    if code != 0:
        _say(f"seed {seed}: Stable-Baselines3 has no result, see {log}")


def _move_aside(folder: Path) -> None:
    """Rename a folder, if there is one, to NAME-1 or the next free number, as `tidemill train --fresh` does."""
    if folder.exists():
        names = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(1))
        folder.rename(next(name for name in names if not name.exists()))


def provenance() -> dict[str, object]:
    """The commit, the machine and the versions that a run depends on."""
    return {"commit": commit(), "machine": machine(), "versions": versions()}


def commit(root: Path = ROOT) -> str:
    """Return the commit that is checked out in a folder; empty without git.

    Returns:
        It ends in `-dirty` if files differ from the commit. Those of results do not count: each result that is written
        changes the table of all.
    """
    try:
        number = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){RESULTS}")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{number}-dirty" if changed else number


def check_committed(root: Path = ROOT) -> None:
    """Refuse to begin a report that nobody could make again.

    Raises:
        ConfigError: Files differ from the commit, or there is none.
    """
    if (number := commit(root)).endswith("-dirty") or not number:
        raise ConfigError(
            f"the checkout {root} is {number or 'without git'}: a report needs files as committed; commit"
        )


def _git(root: Path, *words: str) -> str:
    return subprocess.check_output(["git", *words], text=True, cwd=root, timeout=30, stderr=subprocess.DEVNULL).strip()


def _has_result(folder: Path) -> bool:
    return (folder / "result.json").exists()


def _check_settings(plan: Plan, seed: int) -> None:
    if changed := plan.changed_settings(plan.run_folder(seed)):
        raise ConfigError(
            f"{plan.run_folder(seed)} has a result of other settings ({'; '.join(sorted(changed))}); "
            "run it again with --again, or give this result another --name"
        )


def _raise_first(futures: list[Future[None]]) -> None:
    for future in futures:
        if future.done() and (error := future.exception()):
            raise error


def _say(message: str) -> None:
    print(message, flush=True)
