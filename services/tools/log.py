"""`tidemill log RUN --to wandb`: sends a run's records to Weights & Biases, MLflow or your logger.

It reads them incrementally; the position is kept in the folder of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tidemill import formats
from tidemill.atomic_files import is_disk_full, write_atomically
from tidemill.bundle.files import name_beyond_sweep
from tidemill.config.load import read_document
from tidemill.curves import CLUSTER, CURVES
from tidemill.errors import ConfigError, DataLoss, FailedPrecondition, FatalError
from tidemill.file_lock import open_locked, unlock
from tidemill.installation import command_name
from tidemill.loggers.interface import LoggedRun, RunLogger, check_logger, make_logger
from tidemill.process import stop_event
from tidemill.scores import Score, ScoreReader
from tidemill.services.launcher.run.folder import check_is_run, is_running, name_of
from tidemill.settings.argument_parser import ArgumentParser

_ABOUT = """Send a run's curves, evaluations, settings and result to a logger.

It only reads the run's files: start it during the run or later, and stop and
restart it at any time. It continues at the logger's position, kept in
RUN/loggers; only a kill while it sends may repeat points. While another
process sends the run to the same logger, it waits until that ends, or the run
has ended. Accounts,
addresses and projects are set by the variables of the logger's package:
WANDB_PROJECT, WANDB_MODE=offline, MLFLOW_TRACKING_URI, ..."""


def log(argv: Sequence[str]) -> int:
    """Send, and follow while the run is running; return the exit code."""
    parser = ArgumentParser(
        prog="tidemill log", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, such as runs/quickstart")
    parser.add_argument(
        "--to", required=True, metavar="LOGGER", help="wandb, mlflow, or module:name of a tidemill.RunLogger"
    )
    parser.add_argument(
        "--every-s", type=float, default=5.0, metavar="S", help="polling interval in seconds (default: 5)"
    )
    follow = "keep following until the run finishes (result.json appears) or you stop it"
    parser.add_argument("--follow", action="store_true", help=follow)
    arguments = parser.parse_args(list(argv))
    if not arguments.every_s > 0:
        parser.error(f"--every-s is {arguments.every_s}, allowed: more than 0")
    check_is_run(arguments.run)
    check_logger("--to", arguments.to)
    stop = stop_event()  # what is written by then is sent
    try:
        held = _locked(arguments, stop)
    except FatalError:  # its file system has no locks; the run's records can be read all the same
        return _send(arguments, stop)
    if held is None:
        return 0
    try:
        return _send(arguments, stop)
    finally:
        unlock(held)


def _locked(arguments: argparse.Namespace, stop: threading.Event) -> int | None:
    """Return the lock of a run's logger, once no other process sends to it; None if stopped before, or the run ended.

    A logger whose launcher was killed may still be sending when the run is resumed.

    Raises:
        FatalError: Its file system has no locks.
        ConfigError: The run's folder cannot be written to.
    """
    run, name = arguments.run, arguments.to
    file = _file_of(run, name, ".lock")
    with _writing(file.parent):
        file.parent.mkdir(exist_ok=True)
        if (held := open_locked(file)) is None:
            print(f"{run} is already being sent to {name} by another process; waiting for its end", flush=True)
        while held is None and not stop.wait(arguments.every_s):
            held = open_locked(file)
            if held is None and _has_ended(run, forever=arguments.follow):  # a launcher may wait for this process
                print(f"{run} has ended; the other process sends the rest", flush=True)
                return None
    return held


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn an error of a change in the folder of positions into a `ConfigError`, unless the disk is full."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise
        raise ConfigError(
            f"cannot write to {folder} ({error.strerror}), where the position in the run's records is kept"
        ) from error


def _file_of(run: Path, name: str, suffix: str) -> Path:
    """Return a file of a logger in the run's folder."""
    return run / "loggers" / f"{name.replace(':', '.')}{suffix}"


def _send(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Send what is new, until the run ends or the command is stopped; return the exit code."""
    follower = Follower(arguments.run, arguments.to)
    try:
        points = _follow(follower, arguments.run, stop, arguments.every_s, forever=arguments.follow)
        result = formats.read_json(arguments.run / "result.json", formats.RESULT)
        if result and not is_running(arguments.run):
            follower.finish(result)
    finally:
        follower.close(run_continues=not _has_ended(arguments.run, forever=arguments.follow))
    print(f"{points:,} points sent to {arguments.to}, run {follower.id}")
    return 0


def _follow(follower: Follower, run: Path, stop: threading.Event, every_s: float, *, forever: bool) -> int:
    """Send until the run has ended; return how many points."""
    points = 0
    while True:
        # Asked before reading, so that nothing is written between the last read and the end.
        has_ended = stop.is_set() or _has_ended(run, forever=forever)
        points += follower.send_new()
        if has_ended:
            return points
        stop.wait(every_s)


def _has_ended(run: Path, *, forever: bool) -> bool:
    """True if a run is not running, and with `forever` has a result, too."""
    return not (is_running(run) or (forever and not (run / "result.json").exists()))


METRICS = "metrics.jsonl"
_MOST_BYTES = 1 << 20
_OF_A_SCORE = ("mean", "std", "min", "max", "median", "mean_length", "human_normalised", "env_steps", "wall_s")


@dataclass
class Place:
    """Position of a logger in a run's records, and its name for the run."""

    id: str = ""
    key: str = ""
    """Random, to tell runs apart: a logger may give two runs the same id."""
    folder: str = ""
    """Path of the run when it was sent, by which a copy is known."""
    metrics_bytes: int = 0
    scores: int = 0
    confirmations: int = 0
    curves_bytes: dict[str, int] = field(default_factory=dict)
    """By writer: of the curves of actors and cluster."""


@dataclass(frozen=True)
class Point:
    """Scalars at a step."""

    step: int
    scalars: dict[str, float]
    time_s: float


class Follower:
    """Sends a run's records to a logger, each once, also over restarts of the follower."""

    def __init__(self, folder: Path, name: str) -> None:
        """Make the logger, which takes up its run where one was sent before.

        Args:
            folder: Of the run.
            name: Of the logger, as `make_logger` takes it.

        Raises:
            ConfigError: There is no such logger, it cannot be made, or the run's folder cannot be written to.
            DataLoss: The file that says how far it has read holds something else.
        """
        self._folder = folder
        self._file = _file_of(folder, name, ".json")
        self._place = _read_place(self._file)
        self._scores = {kind: ScoreReader(folder / f"{kind}.csv") for kind in ("scores", "confirmations")}
        if _is_copy(folder, name, self._place):
            print(f"{folder} is a copy of {self._place.folder}; it is sent as another run", flush=True)
            self._place = Place()
        config = read_document(folder / "config.yaml")
        run = LoggedRun(name_beyond_sweep(folder, name_of(folder)), folder.resolve(), config, self._place.id)
        self._logger: RunLogger = make_logger(name, run)
        self._place.id, self._place.folder = self._logger.id, str(folder.resolve())
        self._place.key = self._place.key or secrets.token_hex(8)
        with _writing(self._file.parent):
            self._file.parent.mkdir(exist_ok=True)
            self._write_place()

    @property
    def id(self) -> str:
        """What the run is called at the other end."""
        return self._place.id

    def send_new(self) -> int:
        """Send what was written since; return how many points.

        Raises:
            FailedPrecondition: The folder holds another run now, or none.
        """
        if _read_place(self._file).key != self._place.key:
            raise self._started_again()
        sent = self._send_lines(self._folder / METRICS)
        for curves in sorted((self._folder / CURVES).glob("*.jsonl")):
            sent += self._send_lines(curves, curves.stem)
        for kind, counter in (("evaluation", "scores"), ("confirmation", "confirmations")):
            path = self._folder / f"{counter}.csv"
            begin = getattr(self._place, counter)
            scores = self._scores[counter].read()[begin:]
            for count, point in enumerate(_points_of_scores(kind, scores, path), begin + 1):
                self._logger.log(point.step, point.scalars, point.time_s)
                setattr(self._place, counter, count)
                self._save()
                sent += 1
        return sent

    def finish(self, result: Mapping[str, Any]) -> None:
        """Tell the logger the result of a run that has ended."""
        self._logger.finish(result)

    def close(self, *, run_continues: bool) -> None:
        """Close the logger, and tell it whether the run is still running."""
        self._logger.run_continues = run_continues
        self._logger.close()

    def _send_lines(self, file: Path, writer: str = "") -> int:
        """Send the lines of a file, of a writer's curves if it has one; return how many."""
        place, sent = self._place, 0
        offset = place.curves_bytes.get(writer, 0) if writer else place.metrics_bytes
        while lines := _whole_lines(file, offset):
            try:
                for line in lines:
                    self._send(_point_of_line(line), writer)
                    offset += len(line)
            finally:
                if writer:
                    place.curves_bytes[writer] = offset
                else:
                    place.metrics_bytes = offset
                self._save()
            sent += len(lines)
        return sent

    def _send(self, point: Point | None, writer: str = "") -> None:
        """Send a point, if it is one; an actor's curves have its name: `actors/NAME/episode_return`."""
        if point is not None:
            scalars = {_called(name, writer): value for name, value in point.scalars.items()}
            self._logger.log(point.step, scalars, point.time_s)

    def _save(self) -> None:
        """Keep the position; while the disk is full it is kept in memory alone."""
        try:
            self._write_place()
        except FileNotFoundError as error:
            raise self._started_again() from error
        except OSError as error:
            if not is_disk_full(error):
                raise

    def _write_place(self) -> None:
        write_atomically(self._file, json.dumps(asdict(self._place)) + "\n", sync=False)

    def _started_again(self) -> FailedPrecondition:
        return FailedPrecondition(
            f"the run in {self._folder} was started again or moved; run `{command_name()} log` again to send it"
        )


def _read_place(file: Path) -> Place:
    try:
        return Place(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Place()
    except (TypeError, ValueError) as error:
        raise DataLoss(f"{file} does not say how far a logger has read; remove it to send everything again") from error


def _is_copy(run: Path, name: str, place: Place) -> bool:
    """True if the run of a position is still where it was sent from, which is another folder than `run`.

    Inodes would also tell a copy from a rename, but some file systems change them at every mount.
    """
    original = Path(place.folder)
    with contextlib.suppress(OSError, DataLoss):  # it is not there
        return (
            bool(place.folder)
            and not original.samefile(run)
            and _read_place(_file_of(original, name, ".json")).key == place.key
        )
    return False


def _whole_lines(file: Path, offset: int) -> list[bytes]:
    """Return the lines from a byte on, without a last one that is still being written."""
    try:
        with file.open("rb") as content:
            content.seek(offset)
            data = content.read(_MOST_BYTES)
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


def _point_of_line(line: bytes) -> Point | None:
    """Return the record of a line of metrics.jsonl; None if it is not valid."""
    try:
        values = json.loads(line)
        step, time_s = int(values.pop("step")), float(values.pop("time"))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    scalars = {name: float(value) for name, value in values.items() if isinstance(value, (int, float))}
    return Point(step, scalars, time_s)


def _called(name: str, writer: str) -> str:
    """Return the name of a curve among those of all writers."""
    return name if writer in ("", CLUSTER) else f"actors/{writer}/{name.removeprefix('actor/')}"


def _points_of_scores(kind: str, scores: Sequence[Score], file: Path) -> Iterator[Point]:
    """Yield a point for each row; a file does not say when a row was written, so all have the time of the newest."""
    for score in scores:
        values = ((f"{kind}/{name}", getattr(score, name)) for name in _OF_A_SCORE)
        scalars = {name: float(value) for name, value in values if value is not None}
        yield Point(score.learner_steps, scalars, os.stat(file).st_mtime)
