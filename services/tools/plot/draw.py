"""Picture of `tidemill plot`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.typing import ColorType

from tidemill.atomic_files import replacing
from tidemill.services.tools.plot.bootstrap import common_grid, mean_interval, on_grid
from tidemill.services.tools.plot.groups import Group, describe_seeds

AXES = {"env_steps": "agent decisions", "wall_s": "training time (s)", "learner_steps": "updates"}
"""What may stand on the horizontal axis: a column of scores.csv, and its words."""

_SIZE = (9, 5)
_LINES, _LINE = 6, 0.18
"""How many lines a legend has before the picture grows by the height of each, in inches like its size."""
_LETTERS_OF_HALF = 60
"""How many letters of a legend fit into half of the width."""


def draw(groups: Sequence[Group], x: str, file: Path) -> None:
    """Draw the curves of groups of runs; the file is replaced whole.

    Each run is a thin line; of several the mean over seeds is a thick one, with the 95 % bootstrap interval of the mean
    as a band, where all of them have evaluations. One that has not ended is dotted and not in the mean.

    Args:
        groups: What is compared.
        x: Horizontal axis, one of `AXES`.
        file: Its suffix is the format: .png, .pdf or .svg.
    """
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    for index, group in enumerate(groups):
        _draw_group(axes, group, x, colours[index % len(colours)])
    axes.set_xlabel(AXES[x])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("mean return of an evaluation")
    axes.set_title(", ".join(dict.fromkeys(group.env_id for group in groups)))
    axes.grid(alpha=0.3)
    axes.margins(x=0.02)
    handles, labels = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, labels)) <= _LETTERS_OF_HALF else 1
    figure.set_figheight(_SIZE[1] + _LINE * max(0, math.ceil(len(labels) / columns) - _LINES))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    with replacing(file, sync=False) as temporary:
        figure.savefig(temporary, format=file.suffix.lstrip("."), dpi=120)


def _draw_group(axes: Axes, group: Group, x: str, colour: ColorType) -> None:
    is_alone = len(group.curves) == 1
    points = [curve.points(x) for curve in group.averaged]
    grid = common_grid(points)
    label = f"{group.label}: {describe_seeds(group.curves)}" if is_alone else None
    if not is_alone and not len(grid):
        label = f"{group.label}: {describe_seeds(group.curves)}, without a common range for a mean"
    for curve in group.curves:
        where, means = curve.points(x)
        width, alpha = (1.6, 1.0) if is_alone else (0.7, 0.4)
        marker, line = "." if len(where) == 1 else "", "-" if curve in group.averaged else ":"
        axes.plot(where, means, line, color=colour, linewidth=width, alpha=alpha, marker=marker, label=label)
        label = None  # once
    if is_alone or not len(grid):
        return
    means_on_grid = on_grid(points, grid)
    low, high = mean_interval(means_on_grid)
    axes.fill_between(grid, low, high, alpha=0.2, linewidth=0, color=colour)
    label = f"{group.label}: mean of {describe_seeds(group.averaged)}, 95 % bootstrap interval"
    if unended := len(group.curves) - len(points):
        label += f" ({unended} more not ended)"
    axes.plot(grid, means_on_grid.mean(axis=0), color=colour, linewidth=2, label=label)
