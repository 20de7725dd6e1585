"""Records of the evaluator during a run: its CSV files, TensorBoard and the run's clock."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from tidemill import formats
from tidemill.atomic_files import write_atomically
from tidemill.bundle.files import CONFIG, name_beyond_sweep, portable_settings
from tidemill.config.run import RunSettings
from tidemill.config.sections import EvaluatorConfig
from tidemill.curves import Refusals
from tidemill.params.version import Version
from tidemill.scores import Score, best_score
from tidemill.services.evaluator.csv_logs import EpisodeLog, ScoreLog, score_of
from tidemill.services.evaluator.protocol import Evaluation
from tidemill.services.evaluator.room import when_there_is_room
from tidemill.settings.overlay import to_document
from tidemill.tensorboard_writer import TensorboardWriter

SESSION_VARIABLE = "TIDEMILL_SESSION_START_S"
"""Environment variable with the launcher's start time of the processes, on the monotonic clock."""

_SAVE_EVERY_S = 10.0
_log = structlog.get_logger()


class WallClock:
    """Counts from the start of each session: that of the launcher if there is one, else of this process.

    What earlier sessions took is kept in wall_clock.json, which `save` writes; a session that was killed
    loses what it had not saved. Safe to use from several threads.

    Attributes:
        longest_s: Seconds of the longest evaluation so far, also of earlier sessions; `save` writes it, too.
    """

    def __init__(self, file: Path, session_start_s: float, now: Callable[[], float]) -> None:
        """Read the time of earlier sessions.

        Args:
            file: Where it is kept.
            session_start_s: When this session started, on the clock `now`. An evaluator that was restarted
                within a session gets the same value and does not count its time twice.
            now: Monotonic time in seconds.

        Raises:
            UnknownFormat: The file has a format that this version does not know.
        """
        self._file, self._session_start_s, self._now = file, session_start_s, now
        document = formats.read_json(file, formats.CLOCK)
        is_same_session = document.get("session_start_s") == session_start_s
        self._before_s = _seconds(document, "before_s" if is_same_session else "wall_s")
        self.longest_s = _seconds(document, "longest_evaluation_s")
        self._saving, self._tried_s = threading.Lock(), session_start_s

    def wall_s(self) -> float:
        """Return the seconds of training so far."""
        return self._before_s + max(self._now() - self._session_start_s, 0.0)

    def save(self) -> None:
        """Save the time so far for the next session."""
        with self._saving:
            self._write(sync=True)

    def save_if_due(self, within_s: float = _SAVE_EVERY_S) -> None:
        """Save it unless that was tried in the last seconds; a disk that refuses it is asked again later.

        A process that is killed in each evaluation would otherwise never come to a limit of time.
        """
        with self._saving:
            if self._now() - self._tried_s >= within_s:
                self._tried_s = self._now()
                with suppress(OSError):
                    self._write(sync=False)

    def _write(self, *, sync: bool) -> None:
        document = {
            formats.KEY: formats.NEWEST[formats.CLOCK],
            "session_start_s": self._session_start_s,
            "before_s": self._before_s,
            "wall_s": round(self.wall_s(), 3),
            "longest_evaluation_s": round(self.longest_s, 3),
        }
        write_atomically(self._file, json.dumps(document) + "\n", sync=sync)


def _seconds(document: Mapping[str, Any], name: str) -> float:
    try:
        return float(document[name])
    except (KeyError, TypeError, ValueError):  # no file, or an older or damaged one
        return 0.0


def session_start_s(now: Callable[[], float]) -> float:
    """Return the start of this session by the launcher, or the present time without a launcher."""
    value = os.environ.get(SESSION_VARIABLE, "")
    return float(value) if value else now()


_HPARAMS = ("run", "env", "agent", "table", "learner", "actor", "launcher")
"""Sections of settings that TensorBoard compares runs by."""


class RunLogs:
    """scores.csv, confirmations.csv, episodes.csv, TensorBoard and the run's clock."""

    def __init__(self, run: RunSettings, now: Callable[[], float], stop: threading.Event | None = None) -> None:
        """Continue the records in the run's folder, which is created if missing.

        Args:
            run: The run; its target says which confirmations held.
            now: Monotonic time in seconds.
            stop: Ends the wait for room on a full disk.

        Raises:
            DataLoss: a file holds something else.
        """
        folder = run.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._run, self._stop = run, stop or threading.Event()
        self.clock = WallClock(folder / "wall_clock.json", session_start_s(now), now)
        self.scores = ScoreLog(folder / "scores.csv")
        self.confirmations = ScoreLog(folder / "confirmations.csv")
        self._episodes = EpisodeLog(folder / "episodes.csv")
        self._refusals = Refusals("evaluator")
        self._tensorboard = TensorboardWriter(folder / "tensorboard" / "evaluator")

    def write_hparams(self, config: EvaluatorConfig) -> None:
        """Write the settings for TensorBoard's page HParams: all of the run's if its config.yaml is there, or ours."""
        file = config.run.folder / CONFIG
        document = portable_settings(file) if file.exists() else to_document(config)
        settings = {name: dict(document[name]) for name in _HPARAMS if name in document}
        for name in ("name", "root", "supervisor"):  # say nothing of how it was trained
            settings["run"].pop(name, None)
        for section in settings.values():
            section.pop("server", None)  # addresses and files of a machine
        self._tensorboard.write_hparams(settings, name_beyond_sweep(config.run.folder, config.run.name))

    def add_film(self, file: Path, size: tuple[int, int], version: Version) -> None:
        """Show a GIF of the best policy, of so many pixels, in TensorBoard."""
        self._tensorboard.write_picture("evaluation/best_policy", file, size, version.metadata.env_steps)

    def add(self, evaluation: Evaluation, version: Version) -> Score:
        """Record an evaluation that ended now."""
        score = score_of(evaluation, version, self.clock.wall_s())
        self._keep(lambda: self._episodes.append(evaluation, version.version, "evaluation"))
        self._keep(lambda: self.scores.append(score))
        self._keep(self.clock.save)
        self._write_scalars("evaluation", score)
        return score

    def add_confirmation(self, evaluation: Evaluation, version: Version) -> Score:
        """Record a confirmation that ended now, whether or not its mean reached the target."""
        score = score_of(evaluation, version, self.clock.wall_s())
        self._keep(lambda: self._episodes.append(evaluation, version.version, "confirmation"))
        self._keep(lambda: self.confirmations.append(score))
        self._write_scalars("confirmation", score)
        return score

    def best(self) -> Score | None:
        """Return the best evaluation so far; None before the first."""
        return best_score(self.scores.rows, self.confirmations.rows, self._run.target_return)

    @property
    def next_confirmation_seed(self) -> int:
        """The seed after the largest that a confirmation has recorded; 0 before the first."""
        return self._episodes.next_confirmation_seed

    def close(self) -> None:
        """Save the clock, if the disk takes it: everything else is written."""
        try:
            self.clock.save()
        except OSError as error:
            _log.warning("training time not saved", reason=str(error))

    def _keep(self, write: Callable[[], None]) -> None:
        """Write, once the disk has room for it."""
        when_there_is_room(write, self._stop)

    def _write_scalars(self, group: str, score: Score) -> None:
        scalars = {
            "return_mean": score.mean,
            "return_std": score.std,
            "return_min": score.min,
            "return_max": score.max,
            "return_median": score.median,
            "episode_length": score.mean_length,
            "human_normalised": score.human_normalised,
            "params_version": score.params_version,
        }
        known = {f"{group}/{name}": value for name, value in scalars.items() if value is not None}
        with self._refusals.dropped():  # the row is in the file that counts
            self._tensorboard.write(known, score.env_steps)
