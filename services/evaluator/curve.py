"""plots/learning_curve.png: mean evaluation return over agent decisions and over training time.

`python -m tidemill.services.evaluator.curve RUN TITLE [TARGET]` draws it from RUN/scores.csv and
RUN/confirmations.csv, once it is sent a line (`curve_drawing.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tidemill.atomic_files import replacing
from tidemill.scores import Score, best_score, read_scores
from tidemill.services.evaluator.curve_drawing import CURVE


def draw_curve(
    scores: Sequence[Score], confirmations: Sequence[Score], file: Path, *, title: str, target: float | None = None
) -> None:
    """Draw the evaluations of a run; the file is replaced whole.

    Args:
        scores: Rows of scores.csv, at least one.
        confirmations: Rows of confirmations.csv.
        file: Where the PNG is written.
        title: Above the plot.
        target: Drawn as a line, if there is one.
    """
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    best = scores.index(best_score(scores, confirmations, target) or scores[0])
    _draw(left, [score.env_steps for score in scores], scores, best, target)
    _draw(right, [score.wall_s for score in scores], scores, best, target)
    left.set_xlabel("agent decisions")
    right.set_xlabel("training time (s)")
    left.set_ylabel("return of an episode")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)  # beside the curves
    figure.suptitle(title)
    file.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    with replacing(file, sync=False) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _draw(axes: Axes, x: Sequence[float], scores: Sequence[Score], best: int, target: float | None) -> None:
    means = [score.mean for score in scores]
    low = [score.mean - score.std for score in scores]
    high = [score.mean + score.std for score in scores]
    axes.fill_between(x, low, high, alpha=0.2, linewidth=0, color="tab:blue", label="± one standard deviation")
    axes.plot(x, means, color="tab:blue", marker=".", label=f"mean of {scores[-1].episodes} episodes")
    axes.plot(x[best], means[best], "*", color="tab:orange", markersize=12, label=f"best: {means[best]:.1f}")
    if target is not None:
        axes.axhline(target, color="tab:green", linestyle="--", linewidth=1, label=f"target: {target:g}")
    axes.grid(alpha=0.3)
    axes.margins(x=0.02)


def main(argv: Sequence[str]) -> None:
    """Draw the curve of the run whose folder is the first argument."""
    folder, title, *target = argv
    scores, confirmations = (read_scores(Path(folder) / name) for name in ("scores.csv", "confirmations.csv"))
    draw_curve(scores, confirmations, Path(folder) / CURVE, title=title, target=float(target[0]) if target else None)


if __name__ == "__main__":
    sys.stdin.readline()
    main(sys.argv[1:])
