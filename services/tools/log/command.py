"""`tidemill log RUN --to wandb`: sends a run's records to Weights & Biases, MLflow or your logger."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from tidemill import formats
from tidemill.services.launcher.run.folder import check_is_run, is_running
from tidemill.services.tools.log.follow import Follower

_ABOUT = """Send a run's curves, evaluations, settings and result to a logger, also while the run trains.

It only reads the run's files: start it during the run or later, and stop and restart it at any time. Nothing is sent
twice; each logger's position is kept in RUN/loggers. Accounts, addresses and projects are set by the variables of the
logger's package: WANDB_PROJECT, WANDB_MODE=offline, MLFLOW_TRACKING_URI and others."""


def log(argv: Sequence[str]) -> int:
    """Send, and follow while the run is running; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tidemill log", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, such as runs/quickstart")
    parser.add_argument(
        "--to", required=True, metavar="LOGGER", help="wandb, mlflow, or module:name of a tidemill.RunLogger"
    )
    parser.add_argument("--every-s", type=float, default=5.0, metavar="S", help="polling interval in seconds")
    follow = "keep following until the run finishes (result.json appears) or you stop it"
    parser.add_argument("--follow", action="store_true", help=follow)
    arguments = parser.parse_args(list(argv))
    if not arguments.every_s > 0:
        parser.error(f"--every-s is {arguments.every_s}, allowed: more than 0")
    check_is_run(arguments.run)
    stop = threading.Event()
    _stop_gently(stop)
    follower = Follower(arguments.run, arguments.to)
    try:
        points = _follow(follower, arguments.run, stop, arguments.every_s, forever=arguments.follow)
        result = formats.read_json(arguments.run / "result.json", formats.RESULT)
        if result and not is_running(arguments.run):
            follower.finish(result)
    finally:
        follower.close()
    print(f"{points:,} points sent to {arguments.to}, run {follower.id}")
    return 0


def _follow(follower: Follower, run: Path, stop: threading.Event, every_s: float, *, forever: bool) -> int:
    """Send until the run has ended; return how many points."""
    points = 0
    while True:
        # Asked before reading, so that nothing is written between the last read and the end.
        has_ended = stop.is_set() or not (is_running(run) or (forever and not (run / "result.json").exists()))
        points += follower.send_new()
        if has_ended:
            return points
        stop.wait(every_s)


def _stop_gently(stop: threading.Event) -> None:
    """Have SIGTERM or Ctrl-C set `stop`, so that what is written is sent; a second one ends the process at once."""

    def handle(number: int, frame: object) -> None:
        del frame
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
