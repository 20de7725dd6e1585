"""Runs of a sweep, each a separate `tidemill train` in its own folder, resumed if it was interrupted."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill import formats, linux
from tidemill.atomic_files import write_atomically
from tidemill.config.load import load_config
from tidemill.config.services import LOGGERS_STOP_S
from tidemill.config.yaml_text import written
from tidemill.errors import ConfigError
from tidemill.params.run_end import RESULT, read_divergence
from tidemill.parent import PARENT_VARIABLE
from tidemill.programs.fork_client import DRAWING, ForkClient, Program, started, wait_or_kill
from tidemill.programs.fork_server import Order
from tidemill.scores import read_scores
from tidemill.services.launcher.commands.train import check_settings
from tidemill.services.launcher.run.folder import has_trained
from tidemill.services.launcher.run.free_ports import check_free_ports
from tidemill.services.launcher.supervise.child import DEFAULTS
from tidemill.services.tools.sweep.journal import Trial
from tidemill.services.tools.sweep.plan import Sweep
from tidemill.services.tools.sweep.propose import propose

FAILURES_TO_STOP = 3
"""So many runs that failed before any has succeeded will not be followed by a good one."""


@dataclass(frozen=True)
class Run:
    """A run of a trial that was started.

    Attributes:
        trial: Its trial.
        seed: Its seed.
        slot: Its number among simultaneous runs, from 0.
        process: Its launcher.
    """

    trial: Trial
    seed: int
    slot: int
    process: Program


def run_folder(sweep_folder: Path, trial: Trial, seed: int) -> Path:
    """Return the folder of a trial's run with a seed."""
    return sweep_folder / f"trial-{trial.number:04d}" / f"seed-{seed}"


def run_name(trial: Trial, seed: int) -> str:
    """Return the name of a run's table and actors where runs share a replay service."""
    return f"trial_{trial.number:04d}_seed_{seed}"


def fork_client(config: Mapping[str, Any]) -> ForkClient | None:
    """Return the fork server for runs and their services; None if the base config disables it."""
    wanted = linux.CAN_FORK and (config.get("launcher") or {}).get("fork_services", True)
    return ForkClient(DEFAULTS | os.environ, DRAWING) if wanted else None


def check_runs(sweep: Sweep) -> None:
    """Check, before the first run, that one of the first would be started, after whose failures a sweep ends.

    Raises:
        ConfigError: Why the first would be refused. What only some values are refused for fails their trials alone.
    """
    trials: list[Trial] = []
    refusals: list[ConfigError] = []
    runs_of_trial = min(sweep.settings.parallel, len(sweep.settings.seeds))  # none follows one that failed
    while len(trials) < min(math.ceil(FAILURES_TO_STOP / runs_of_trial), sweep.trial_count):
        trials.append(Trial(len(trials), propose(sweep, trials)))
        try:
            config = load_config(sweep.config(trials[-1].values))
            check_free_ports(config)
            check_settings(config, None)
        except ConfigError as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]


def start(
    sweep_folder: Path,
    trial: Trial,
    seed: int,
    slot: int,
    config: Mapping[str, Any],
    arguments_besides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    forks: ForkClient | None = None,
) -> Run:
    """Start a run, or continue it if it had begun, with arguments and variables besides; it is forked if it can be."""
    folder = run_folder(sweep_folder, trial, seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    settings = folder.parent / "config.yaml"
    document = {formats.KEY: formats.NEWEST[formats.CONFIG], **config}  # checked, so no address of it counts as given
    write_atomically(settings, written(document))
    if has_trained(folder):
        arguments = ["resume", str(folder), "--launcher.view", "quiet"]
    else:
        arguments = ["train", "--config", str(settings), "--launcher.view", "quiet", "--run.root", str(folder.parent)]
        arguments += ["--run.name", folder.name, "--run.seed", str(seed)]
    arguments += arguments_besides
    # With its parent's id it ends in order if the sweep is killed.
    variables = os.environ | (environment or {}) | {PARENT_VARIABLE: str(os.getpid())}
    order = Order("tidemill.services.launcher", arguments, variables, with_server=True, ends_in_order=True)
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        return Run(trial, seed, slot, started(order, log, forks))


def score_of(folder: Path, objective: str) -> float | None:
    """Return the score of a run that has ended; None if it was stopped, never evaluated, or diverged unsolved.

    The best one is at most what the fresh episodes of its confirmation gave.
    """
    rows, fresh = (read_scores(folder / name) for name in ("scores.csv", "confirmations.csv"))
    scores, confirmed = [row.mean for row in rows], {row.params_version: row.mean for row in fresh}
    result = formats.read_json(folder / RESULT, formats.RESULT)
    if not scores or not result or (read_divergence(folder) and not result.get("solved")):
        return None
    best = max(min(row.mean, confirmed.get(row.params_version, row.mean)) for row in rows)
    return {"last": scores[-1], "best": best, "mean": statistics.fmean(scores)}[objective]


def stop(runs: Sequence[Run], services_s: float) -> list[Run]:
    """Stop runs in order, all at once, and wait; return those that did not end and were killed.

    Args:
        runs: What is stopped.
        services_s: Longest that their launchers take to end their services, in seconds.
    """
    for run in runs:
        run.process.terminate()
    deadline_s = time.monotonic() + services_s + LOGGERS_STOP_S
    return [run for run in runs if wait_or_kill(run.process, max(deadline_s - time.monotonic(), 0.0))]
