"""`tidemill sweep FILE`: trains a config with varied settings and ranks them."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tidemill.atomic_files import is_disk_full, is_there, write_atomically
from tidemill.config.load import load_config, read_document
from tidemill.config.yaml_text import written
from tidemill.errors import ConfigError, FailedPrecondition
from tidemill.file_lock import open_locked, unlock
from tidemill.installation import command_name
from tidemill.params.run_end import RESULT
from tidemill.process import stop_event, survive_without_output
from tidemill.programs.fork_client import ForkClient
from tidemill.services.launcher.run.folder import has_trained, is_running
from tidemill.services.tools.sweep import gpus
from tidemill.services.tools.sweep.journal import Journal, Trial
from tidemill.services.tools.sweep.plan import Sweep, read_sweep
from tidemill.services.tools.sweep.propose import check_method, propose
from tidemill.services.tools.sweep.report import draw_results, table, write_results
from tidemill.services.tools.sweep.runs import (
    FAILURES_TO_STOP,
    Run,
    check_runs,
    fork_client,
    run_folder,
    run_name,
    score_of,
    start,
    stop,
)
from tidemill.services.tools.sweep.shared_replay import SharedReplay
from tidemill.settings.argument_parser import ArgumentParser

_POLL_S = 0.5
_START_S = 10.0
"""So long the shared replay service may take to start before it is told that runs wait for it, in seconds."""

_CHANGEABLE = ("trials", "parallel")
"""Settings of a sweep that may differ when it is continued."""

_ABOUT = """Train a config with varied settings and rank the trials by score.

FILE is YAML, for example:

  base: cartpole_dqn       # a preset, or a config file
  method: random           # or grid, or tpe (pip install 'tidemill[sweep]')
  trials: 20
  seeds: [1, 2]            # runs of each trial; its score is their mean
  objective: last          # score of a run: last or best evaluation, or mean
  parallel: 1              # simultaneous runs, spread over the GPUs
  share_replay: false      # share one replay service among all runs
  settings: {run.max_env_steps: 50000}  # for all trials
  space:
    agent.learning_rate: {log: [1e-5, 1e-2]}
    agent.batch_size: [32, 64, 128]
    agent.gamma: {uniform: [0.95, 0.999]}

The folder holds results.csv, results.png, and the runs. The same command
continues a sweep that was stopped, its unfinished runs and those that failed.
The winner was chosen on these seeds, so its score is too good: report results
on new seeds."""


def sweep(argv: Sequence[str]) -> int:
    """Run a sweep to its end; return the exit code."""
    parser = ArgumentParser(
        prog="tidemill sweep", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="description of the sweep, see above")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder of the sweep (default: sweeps/NAME of the file)"
    )
    arguments = parser.parse_args(list(argv))
    folder = arguments.out or Path("sweeps") / arguments.file.stem
    plan = read_sweep(arguments.file, kept_base_of(folder, arguments.file))
    check_method(plan)
    if not is_there(folder / "sweep.yaml"):
        check_runs(plan)
    survive_without_output()  # nothing that a person looks at may end the runs
    with _locked(folder):
        journal = journal_of(folder, plan)
        if not plan.settings.share_replay:
            return _Loop(plan, folder, journal).run()
        with SharedReplay(folder, plan.config({}), plan.trial_count * len(plan.settings.seeds)) as shared:
            return _Loop(plan, folder, journal, shared).run()


class _Loop:
    """Starts runs, as many as may run at the same time, and collects their scores."""

    def __init__(self, plan: Sweep, folder: Path, journal: Journal, shared: SharedReplay | None = None) -> None:
        self._plan, self._folder, self._journal, self._shared = plan, folder, journal, shared
        self._running: list[Run] = []
        self._gpus = gpus.visible(os.environ)
        self._forks: ForkClient | None = None
        self._failures = 0
        self._awaited = Path()
        self._unemptied_since_s: dict[Path, float] = {}
        self._stop = stop_event()

    def run(self) -> int:
        """Run until all trials have ended, or the sweep is stopped; return the exit code."""
        self._forks = fork_client(self._plan.config({}))
        try:
            while not self._stop.is_set() and self._step():
                self._stop.wait(_POLL_S)
        finally:
            self._stop_runs()
            if self._forks is not None:
                self._forks.close()
        return self._end()

    def _stop_runs(self) -> None:
        """Stop the runs, each in the time that its launcher gives its services."""
        services_s = 0.0
        for run in self._running:
            with suppress(ConfigError):  # of values that do not go together, for which a launcher starts no service
                config = load_config(self._plan.config(run.trial.values))
                services_s = max(services_s, config.launcher.longest_stop_s)
        for run in stop(self._running, services_s):
            folder = run_folder(self._folder, run.trial, run.seed)
            print(f"{folder} did not end in time and was killed; it continues from its last checkpoint", flush=True)

    def _step(self) -> bool:
        """Take in what has ended and start what may be started; return whether there is more to come."""
        if self._shared is not None:
            self._shared.tend()
        for run in [run for run in self._running if run.process.poll() is not None]:
            self._running.remove(run)
            score = self._take_in(run.trial, run.seed, failed=run.process.returncode != 0)
            self._failures += score is None
        if self._has_failed:
            return False
        while len(self._running) < self._plan.settings.parallel and (following := self._next()):
            trial, seed = following
            folder = run_folder(self._folder, trial, seed)
            if is_running(folder):  # the run of a sweep that was killed needs a while to end
                if folder != self._awaited:
                    print(f"{folder} is still running; waiting for its end", flush=True)
                self._awaited = folder
                return True
            has_ended = (folder / RESULT).exists()
            if (has_ended or not has_trained(folder)) and not self._is_empty(trial, seed, folder):
                return True  # until the service, which may be starting, has removed what an earlier session left
            if has_ended:  # while nobody looked
                self._take_in(trial, seed, failed=seed in trial.failed_at_end)
            else:
                besides = self._shared.arguments(run_name(trial, seed)) if self._shared is not None else ()
                config = self._plan.config(trial.values)
                slots = self._plan.settings.parallel
                slot = min(set(range(slots)) - {run.slot for run in self._running})
                seen = gpus.of_slot(self._gpus, slot, slots, config)
                self._running.append(start(self._folder, trial, seed, slot, config, besides, seen, self._forks))
        return bool(self._running)

    def _next(self) -> tuple[Trial, int] | None:
        """Return a trial and a seed that are to be run: of a trial that has begun, or else of a new one."""
        under_way = {(run.trial.number, run.seed) for run in self._running}
        for trial in self._journal.trials:
            for seed in self._plan.settings.seeds:
                if seed not in trial.scores and (trial.number, seed) not in under_way and not trial.has_failed:
                    return trial, seed
        if len(self._journal.trials) >= self._plan.trial_count:
            return None
        return self._journal.begin(propose(self._plan, self._journal.trials)), self._plan.settings.seeds[0]

    def _take_in(self, trial: Trial, seed: int, *, failed: bool) -> float | None:
        folder = run_folder(self._folder, trial, seed)
        score = None if failed else score_of(folder, self._plan.settings.objective)
        has_ended = (folder / RESULT).exists()
        self._journal.end(trial, seed, score, failed_at_end=failed and has_ended)
        will_resume = has_trained(folder) and not has_ended  # when the sweep is continued
        if self._shared is not None and not (will_resume and self._shared.keeps_items):
            self._shared.empty(run_name(trial, seed))  # if it cannot, the service's limits bound what is left
        said = f"failed, see {folder}.log" if score is None else f"{score:.4g}"
        values = ", ".join(f"{name} {value}" for name, value in trial.values.items())
        print(f"trial {trial.number} of {self._plan.trial_count}, seed {seed}: {said} ({values})", flush=True)
        write_results(self._plan, self._journal.trials, self._folder / "results.csv")
        return score

    def _is_empty(self, trial: Trial, seed: int, folder: Path) -> bool:
        """Empty the table of a run if runs share a replay service; return whether it is empty.

        If it is not for a while, the reason is printed once.
        """
        if self._shared is None or self._shared.empty(run_name(trial, seed)):
            return True
        now_s = time.monotonic()
        if now_s - self._unemptied_since_s.setdefault(folder, now_s) >= _START_S:
            log = self._folder / "replay.log"
            problem = self._shared.problem
            print(f"{folder} waits for the replay service to empty its table: {problem}, see {log}", flush=True)
            self._unemptied_since_s[folder] = math.inf
        return False

    @property
    def _has_failed(self) -> bool:
        has_success = any(score is not None for trial in self._journal.trials for score in trial.scores.values())
        return self._failures >= FAILURES_TO_STOP and not has_success

    def _end(self) -> int:
        trials, folder = self._journal.trials, self._folder
        if has_score := any(trial.score is not None for trial in trials):
            write_results(self._plan, trials, folder / "results.csv")
            draw_results(self._plan, trials, folder / "results.png")
            print("\n".join(["", *table(self._plan, trials), "", f"{folder}/results.csv, {folder}/results.png"]))
        if self._has_failed:
            failed = next(trial.number for trial in trials if trial.has_failed)
            print(f"the first {self._failures} runs failed; see {folder}/trial-{failed:04d}", file=sys.stderr)
            return 1
        if not has_score and not self._stop.is_set():
            print(f"no trial has a score, as a run of each failed; see {folder}/trial-0000", file=sys.stderr)
            return 1
        if self._stop.is_set():
            print("stopped; the same command continues it")
        return 0


def journal_of(folder: Path, plan: Sweep) -> Journal:
    """Return the journal of a sweep that is new, or of the same one, whose failed runs are to be run again.

    Raises:
        ConfigError: The folder holds another sweep, or its base config has changed.
    """
    file, base = folder / "sweep.yaml", folder / "base.yaml"
    if is_there(file) and not _is_same(read_document(file), plan.document):
        raise ConfigError(f"{folder} holds another sweep, see {file}; --out FOLDER puts this one elsewhere")
    if is_there(base) and read_document(base) != plan.base:
        raise ConfigError(
            f"base {plan.settings.base!r} has changed since the sweep in {folder} was started: set it back to what "
            f"{base} has, or use --out FOLDER for a new sweep"
        )
    for path, document in ((file, plan.document), (base, plan.base)):
        if not is_there(path):  # older sweeps have no base.yaml
            write_atomically(path, written(document))
    journal = Journal(folder / "trials.jsonl")
    journal.forget_failures()
    return journal


def kept_base_of(folder: Path, file: Path) -> Path | None:
    """Return the base that the sweep of a file was started with in a folder; None if it has not begun there."""
    base, begun = folder / "base.yaml", folder / "sweep.yaml"
    has_begun = is_there(base) and is_there(begun)
    return base if has_begun and _is_same(read_document(begun), read_document(file, "the sweep's FILE")) else None


def _is_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """True if a sweep may continue: only the numbers of all trials and of simultaneous trials may differ."""
    both = ({key: value for key, value in each.items() if key not in _CHANGEABLE} for each in (before, now))
    return next(both) == next(both)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder, which is made if it is not there.

    Raises:
        FailedPrecondition: Another process runs it.
        FatalError: Its file system has no locks.
        ConfigError: It cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = open_locked(folder / ".lock")
    except OSError as error:
        if is_disk_full(error):
            raise
        raise ConfigError(f"cannot write to {folder} ({error.strerror}); choose another folder with --out") from error
    if descriptor is None:
        raise FailedPrecondition(f"{folder} is being run by another `{command_name()} sweep`")
    try:
        yield
    finally:
        unlock(descriptor)
