"""Everything the evaluator records during a run: its CSV files, TensorBoard and the run's clock."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.bundle.files import CONFIG, portable_settings
from tidemill.config.overlay import to_document
from tidemill.config.run import RunSettings
from tidemill.config.sections import EvaluatorConfig
from tidemill.params.version import Version
from tidemill.scores import Score
from tidemill.services.evaluator.csv_logs import EpisodeLog, ScoreLog, score_of
from tidemill.services.evaluator.protocol import Evaluation
from tidemill.services.evaluator.verdict import reaches_target
from tidemill.services.evaluator.wall_clock import WallClock, session_start_s
from tidemill.tensorboard_writer import TensorboardWriter

_HPARAMS = ("run", "env", "agent", "table", "learner", "actor")
"""Sections of settings that TensorBoard compares runs by."""


class RunLogs:
    """scores.csv, confirmations.csv, episodes.csv, TensorBoard and the run's clock."""

    def __init__(self, run: RunSettings, now: Callable[[], float]) -> None:
        """Continue the records in the run's folder, which is created if missing.

        Args:
            run: The run; its target says which confirmations held.
            now: Monotonic time in seconds.

        Raises:
            DataLoss: a file holds something else.
        """
        folder = run.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._run = run
        self.clock = WallClock(folder / "wall_clock.json", session_start_s(now), now)
        self.scores = ScoreLog(folder / "scores.csv")
        self.confirmations = ScoreLog(folder / "confirmations.csv")
        self._episodes = EpisodeLog(folder / "episodes.csv")
        self._tensorboard = TensorboardWriter(folder / "tensorboard" / "evaluator")

    def write_hparams(self, config: EvaluatorConfig) -> None:
        """Write the settings for TensorBoard's page HParams: all of the run's if its config.yaml is there, or ours."""
        file = config.run.folder / CONFIG
        document = portable_settings(file) if file.exists() else to_document(config)
        settings = {name: dict(document[name]) for name in _HPARAMS if name in document}
        for name in ("name", "root", "supervisor"):  # say nothing of how it was trained
            settings["run"].pop(name, None)
        self._tensorboard.write_hparams(settings)

    def add(self, evaluation: Evaluation, version: Version) -> Score:
        """Record an evaluation that ended now."""
        score = score_of(evaluation, version, self.clock.wall_s())
        self._episodes.append(evaluation, version.version, "evaluation")
        self.scores.append(score)
        self.clock.save()
        self._write_scalars("evaluation", score)
        return score

    def add_confirmation(self, evaluation: Evaluation, version: Version) -> Score:
        """Record a confirmation that ended now, whether or not its mean reached the target."""
        score = score_of(evaluation, version, self.clock.wall_s())
        self._episodes.append(evaluation, version.version, "confirmation")
        self.confirmations.append(score)
        self._write_scalars("confirmation", score)
        return score

    def best(self) -> Score | None:
        """Return the best evaluation: one whose version was confirmed before all others, then by mean."""
        confirmed = {row.params_version for row in self.confirmations.rows if reaches_target(self._run, row.mean)}
        rows = self.scores.rows
        return max(rows, key=lambda row: (row.params_version in confirmed, row.mean), default=None)

    def close(self) -> None:
        """Save the clock and close the files."""
        self.clock.save()
        self._tensorboard.close()

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
        self._tensorboard.write(known, score.env_steps)
