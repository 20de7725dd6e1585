"""curve.csv and curve.png: every evaluation of every seed, and what they say together."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.learn.atomic import write_text
from benchmarks.learn.ran import Ran
from tidemill.atomic_files import replacing
from tidemill.scores import COLUMNS
from tidemill.services.tools.plot.bootstrap import common_grid, mean_interval, on_grid

_FIRST = ("env_steps", "learner_steps", "wall_s")
CURVE_COLUMNS = ("seed", *_FIRST, *(name for name in COLUMNS if name not in _FIRST))


def write_rows(runs: Sequence[Ran], file: Path) -> None:
    """Write one row per evaluation, seed after seed."""
    lines = io.StringIO()
    rows = csv.writer(lines, lineterminator="\n")
    rows.writerow(CURVE_COLUMNS)
    for run in runs:
        for score in run.scores:
            cells = dataclasses.asdict(score) | {"seed": run.seed}
            rows.writerow([cells[name] for name in CURVE_COLUMNS])
    write_text(file, lines.getvalue())


def draw(runs: Mapping[str, Sequence[Ran]], file: Path, *, title: str, lines: Mapping[str, float]) -> None:
    """Draw the curves; the file is replaced whole.

    Args:
        runs: The runs of each program, by its name; the first is ours.
        file: Where the PNG is written.
        title: Above the plot.
        lines: Returns to compare with, by what they are.
    """
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    for (name, ran), colour in zip(runs.items(), ("tab:blue", "tab:orange", "tab:red"), strict=False):
        _draw_runs(axes, name, ran, colour)
    for (name, value), colour in zip(lines.items(), ("tab:green", "tab:purple", "tab:brown"), strict=False):
        axes.axhline(value, color=colour, linestyle="--", linewidth=1, label=f"{name}: {value:g}")
    axes.set_xlabel("agent decisions")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("mean return of an evaluation")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.margins(x=0.02)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="best", fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    with replacing(file, sync=False) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _draw_runs(axes: Axes, name: str, runs: Sequence[Ran], colour: str) -> None:
    """Draw each seed thin, dotted if it did not finish; mean and band where all that finished have evaluations."""
    drawn = [run for run in runs if run.scores]
    finished = [run.curve for run in drawn if run.is_finished]
    for run in drawn:
        style = "-" if run.is_finished else ":"
        alone = name if run is drawn[0] and len(finished) < 2 else None
        axes.plot(
            *run.curve, color=colour, linewidth=0.7, alpha=0.5, linestyle=style, marker=".", markersize=2, label=alone
        )
    grid = common_grid(finished)
    if len(finished) < 2 or not len(grid):
        return
    means = on_grid(finished, grid)
    low, high = mean_interval(means)
    axes.fill_between(grid, low, high, alpha=0.2, linewidth=0, color=colour, label=f"{name}: 95 % bootstrap interval")
    axes.plot(grid, means.mean(axis=0), color=colour, linewidth=2, label=f"{name}: mean of {len(finished)} seeds")
