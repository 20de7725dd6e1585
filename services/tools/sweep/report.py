"""Report of a sweep: results.csv, a table of the best trials, and a plot of the score against each setting."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidemill.atomic_files import replacing, write_atomically
from tidemill.services.tools.sweep.journal import Trial
from tidemill.services.tools.sweep.plan import Sweep
from tidemill.services.tools.sweep.space import Parameter

_MOST_LINES = 10
_COLUMNS = 3


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that have a score, the best first, and of equal ones the earlier."""
    return sorted(
        (trial for trial in trials if trial.score is not None), key=lambda trial: (-(trial.score or 0.0), trial.number)
    )


def table(sweep: Sweep, trials: Sequence[Trial]) -> list[str]:
    """Return lines with the best trials: number, score, its seeds' scores where there are several, and values."""
    names = [parameter.name for parameter in sweep.space]
    several = len(sweep.settings.seeds) > 1
    rows = [["trial", "score", *(["by seed"] if several else []), *names]]
    for trial in ranked(trials)[:_MOST_LINES]:
        by_seed = " ".join(_number(trial.scores.get(seed)) for seed in sweep.settings.seeds)
        values = [_number(trial.values[name]) for name in names]
        rows.append([str(trial.number), _number(trial.score), *([by_seed] if several else []), *values])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]


def write_results(sweep: Sweep, trials: Sequence[Trial], file: Path) -> None:
    """Write a row for each trial, the best first, then those without a score."""
    names = [parameter.name for parameter in sweep.space]
    best = ranked(trials)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", "score", *(f"seed_{seed}" for seed in sweep.settings.seeds), *names])
    for trial in [*best, *(trial for trial in trials if trial not in best)]:
        ended = trial.has_ended(sweep.settings.seeds)
        state = "failed" if trial.has_failed else "done" if ended else "begun"
        scores = [_cell(trial.scores.get(seed)) for seed in sweep.settings.seeds]
        writer.writerow([trial.number, state, _cell(trial.score), *scores, *(trial.values[name] for name in names)])
    write_atomically(file, text.getvalue())


def draw_results(sweep: Sweep, trials: Sequence[Trial], file: Path) -> None:
    """Draw the scores in the order of trials with the best so far, and against each setting that varied."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scored = sorted(ranked(trials), key=lambda trial: trial.number)
    panels = 1 + len(sweep.space)
    rows, columns = -(-panels // _COLUMNS), min(panels, _COLUMNS)
    figure = Figure(figsize=(4 * columns, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    _draw_course(axes[0], scored)
    for panel, parameter in zip(axes[1:], sweep.space, strict=False):
        _draw_setting(panel, parameter, scored)
    for panel in axes[panels:]:
        panel.set_axis_off()
    FigureCanvasAgg(figure)
    with replacing(file, sync=False) as temporary:
        figure.savefig(temporary, format=file.suffix.lstrip("."), dpi=120)


def _draw_course(axes: Any, trials: Sequence[Trial]) -> None:  # noqa: ANN401 - matplotlib's
    scores = [trial.score or 0.0 for trial in trials]
    numbers = [trial.number for trial in trials]
    axes.plot(numbers, scores, "o", markersize=4, alpha=0.6)
    axes.plot(numbers, [max(scores[: i + 1]) for i in range(len(scores))], linewidth=1.6, label="best so far")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("trial")
    axes.set_ylabel("score")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _draw_setting(axes: Any, parameter: Parameter, trials: Sequence[Trial]) -> None:  # noqa: ANN401
    values = [trial.values[parameter.name] for trial in trials]
    if parameter.kind == "choice":
        axes.set_xticks(range(len(parameter.values)), [str(value) for value in parameter.values])
        axes.margins(x=0.2)
        values = [parameter.values.index(value) for value in values]
    elif parameter.is_log:
        axes.set_xscale("log")
    axes.plot(values, [trial.score for trial in trials], "o", markersize=4, alpha=0.6)
    axes.set_xlabel(parameter.name)
    axes.grid(alpha=0.3)


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def _cell(score: float | None) -> object:
    return "" if score is None else score
