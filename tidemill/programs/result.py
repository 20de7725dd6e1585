"""Results of a run that `Cluster` or `train` has started."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemill.scores import read_best, read_scores

if TYPE_CHECKING:
    from tidemill.bundle.policy import TrainedPolicy


class LearningCurve(NamedTuple):
    """The evaluations of a run, the oldest first: `plt.plot(*curve)` draws them."""

    env_steps: NDArray[np.int64]
    """Agent decisions behind the evaluated parameters, [N]."""
    score: NDArray[np.float64]
    """Mean return of the evaluation's full episodes, [N]."""


@dataclass(frozen=True)
class RunResult:
    """Result of a run: how it ended, its scores and its policy.

    Attributes:
        exit_code: 0 if it finished or was stopped as asked, 1 if it failed, 2 if a setting was wrong.
        folder: The run's folder, with scores, plots, parameters, checkpoints and logs.
        summary: What `result.json` holds: `solved`, `mean_return`, `wall_s` (s), `env_steps` (agent decisions),
            `learner_steps` (updates) and more; empty if the run ended before it wrote one.
    """

    exit_code: int
    folder: Path
    summary: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def curve(self) -> LearningCurve:
        """The learning curve: agent decisions and mean returns, an entry for each evaluation."""
        scores = read_scores(self.folder / "scores.csv")
        return LearningCurve(
            np.array([score.env_steps for score in scores], np.int64),
            np.array([score.mean for score in scores], np.float64),
        )

    @property
    def best_score(self) -> float | None:
        """Mean return of the evaluation of the version tagged `best`; None without an evaluation."""
        best = read_best(self.folder, self.summary.get("target_return"))
        return best.mean if best else None

    @cached_property
    def policy(self) -> TrainedPolicy:
        """The policy with the best parameters of the run: `policy(observation)` chooses an action.

        See `load_policy`, which also loads other versions, onto a GPU, and for a given action space.
        """
        from tidemill.bundle.policy import load_policy  # imports torch

        return load_policy(self.folder)

    @property
    def video(self) -> Path | None:
        """A video of the best policy; None if none was recorded (`evaluator.video`)."""
        file = self.folder / "videos" / "best.mp4"
        return file if file.is_file() else None

    def describe(self) -> str:
        """Return how the run ended, its best score and its folder, in one line."""
        how = str(self.summary.get("reason") or ("failed" if self.exit_code else "stopped"))
        best = "not evaluated" if self.best_score is None else f"best score {self.best_score:.1f}"
        return f"{how}; {best}; results are in {self.folder}"

    def _repr_html_(self) -> str:
        """Return a result as a notebook shows it: a line, the learning curve and the video, all of them in the text."""
        parts = [f"<p>{html.escape(self.describe())}</p>"]
        if (plot := self.folder / "plots" / "learning_curve.png").is_file():
            parts.append(f'<img alt="Learning curve" width="480" src="{_inline(plot, "image/png")}">')
        if self.video is not None:
            parts.append(f'<video controls loop height="320" src="{_inline(self.video, "video/mp4")}"></video>')
        return "".join(parts)


def _inline(file: Path, kind: str) -> str:
    """Return a file as a URL that holds it."""
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
