"""`tidemill status` and `tidemill ctl`: look at a running cluster and control it."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from tidemill.config.load import read_settings
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError, NotFound, Unavailable
from tidemill.installation import typed
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.params.digest import describe_digest
from tidemill.scores import read_best, read_scores
from tidemill.services.launcher.run.folder import (
    check_is_run,
    has_trained,
    is_deterministic,
    is_running,
    target_return,
)
from tidemill.services.launcher.run.verbs import VERBS, apply_verb, learner_at
from tidemill.services.launcher.view.curves import describe_failures, env_failures, training_return
from tidemill.services.launcher.view.poller import describe_evaluating
from tidemill.services.launcher.view.terminal import describe_shards, describe_sources
from tidemill.settings.argument_parser import ArgumentParser

LEARNER = "TIDEMILL_LEARNER"
"""Variable with the learner's address, for where there is no run's folder."""

_WHERE = "Without RUN or --learner: the only run in runs/ that is running."


def status(argv: Sequence[str]) -> int:
    """Print what a running cluster is doing; return 0, or 1 if it cannot be reached."""
    parser = _parser("status", "Show the status of a running cluster.")
    _add_target(parser)
    arguments = parser.parse_args(list(argv))
    address, folder = target_of(arguments)
    try:
        with learner_at(address) as client:
            rows = _status_rows(client.get_status())
    except Unavailable:
        if not (folder and (evaluating := describe_evaluating(folder))):
            raise
        rows = {"state": f"{evaluating}; the learner has ended or is restarting"}
    if folder:
        rows |= _replay_rows(folder) | _actor_rows(folder) | _score_rows(folder)
    if folder and is_deterministic(folder) and (digest := describe_digest(folder / "params")):
        rows["parameters sha256"] = digest
    width = max(map(len, rows))
    print("\n".join(f"{name:<{width}}  {value}" for name, value in rows.items()))
    return 0


def ctl(argv: Sequence[str]) -> int:
    """Control a running cluster; return 0, or 1 if it cannot be reached."""
    parser = _parser("ctl", "Pause, resume, checkpoint or stop a running cluster.")
    verbs = "pause: no updates until resume; checkpoint: write one now; stop: save, then end the run"
    parser.add_argument("verb", choices=sorted(VERBS), help=verbs)
    _add_target(parser)
    arguments = parser.parse_args(list(argv))
    address, _ = target_of(arguments)
    print(apply_verb(address, arguments.verb, asked_by="`tidemill ctl stop`"))
    return 0


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    return ArgumentParser(prog=f"tidemill {name}", description=description, epilog=_WHERE)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="folder of the run, such as runs/quickstart")
    parser.add_argument(
        "--learner", metavar="ADDRESS", help=f"address of the learner, instead of RUN (default: ${LEARNER})"
    )


def target_of(arguments: argparse.Namespace) -> tuple[str, Path | None]:
    """Return the learner's address, and the run's folder if that is known."""
    if address := arguments.learner or (not arguments.run and os.environ.get(LEARNER)):
        return address, arguments.run
    folder = arguments.run or _only_running(Path("runs"))
    check_is_run(folder)
    if not is_running(folder):
        on = f"; continue it with `{typed('resume', folder)}`" if has_trained(folder) else ", and never trained"
        raise NotFound(f"{folder} is not running{on}")
    config = read_settings(RunConfig, folder / "cluster.yaml")
    return config.cluster.learner, folder


def _only_running(root: Path) -> Path:
    running = [file.parent for file in sorted(root.glob("*/config.yaml")) if is_running(file.parent)]
    if len(running) == 1:
        return running[0]
    found = ", ".join(map(str, running)) or "none"
    raise ConfigError(f"which run? Name its folder, or --learner ADDRESS; running below {root}: {found}")


def _status_rows(learner: LearnerStatus) -> dict[str, str]:
    if learner.state is LearnerState.ENDED:
        return {
            "state": f"ended: {learner.end}",
            "learner steps": f"{learner.learner_steps:,}",
            "env steps": f"{learner.env_steps:,}",
            "params version": f"{learner.params_version}",
        }
    if learner.state is LearnerState.STARTING:  # its counts may not be restored yet
        return {
            "state": "starting",
            "up": f"{learner.uptime_s:,.0f} s",
            "restored": learner.restored or "nothing yet",
        }
    checkpoint = f"at {learner.checkpoint_steps:,} learner steps" if learner.checkpoint_steps else "none yet"
    limit = f" of {learner.max_learner_steps:,}" if learner.max_learner_steps else ""
    rows = {
        "state": learner.state.name.lower(),
        "learner steps": f"{learner.learner_steps:,}{limit} ({learner.steps_per_s:,.1f}/s)",
        "env steps": f"{learner.env_steps:,}",
        "waits": f"{learner.wait_fraction:.0%} of the time",
        "table items": f"{learner.table_items:,}",
        "params version": f"{learner.params_version} (fencing token {learner.fencing_token})",
        "checkpoint": checkpoint,
        "up": f"{learner.uptime_s:,.0f} s",
        "restored": learner.restored or "nothing, a fresh start",
    }
    rows |= describe_shards(learner.shards) | describe_sources(learner.sources)
    return rows | {name: f"{value:.4g}" for name, value in sorted(learner.metrics.items())}


def _replay_rows(folder: Path) -> dict[str, str]:
    """Return the address of the run's replay server; of several each has a row from the learner."""
    with contextlib.suppress(ConfigError):  # the run has ended
        addresses = read_settings(RunConfig, folder / "cluster.yaml").cluster.replay
        return {"replay": addresses[0]} if len(addresses) == 1 else {}
    return {}


def _actor_rows(folder: Path) -> dict[str, str]:
    """Return the mean return of the actors' newest episodes, and the failures of their environments."""
    rows = {}
    if (mean := training_return(folder)) is not None:
        rows["training return"] = f"{mean:.1f}"
    if failures := describe_failures(env_failures(folder)):
        rows["environment failures"] = f"{failures}; reasons are in {folder / 'logs'}/actor-*.log"
    return rows


def _score_rows(folder: Path) -> dict[str, str]:
    found = {
        "newest score": next(reversed(read_scores(folder / "scores.csv")), None),
        "best score": read_best(folder, target_return(folder)),
    }
    return {name: f"{score.mean:.1f} (version {score.params_version})" for name, score in found.items() if score}
