"""overview.png: the curves of six results, each with what it is compared with."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.learn.ran import read_json
from tidemill.atomic_files import replacing
from tidemill.services.tools.plot.bootstrap import common_grid, mean_interval, on_grid

_Curve = tuple[list[float], list[float]]
"""Decisions and mean returns of a seed's evaluations."""

SHOWN = {
    "halfcheetah_crossq": "HalfCheetah, CrossQ",
    "halfcheetah_sac_100k": "HalfCheetah, SAC",
    "lunarlander_continuous_sac": "LunarLander, SAC",
    "pendulum_sac": "Pendulum, SAC",
    "cartpole_ppo": "CartPole, PPO",
    "pong_apex_on_a_gpu": "Pong, DQN",
}
"""Results by name, and the titles of their panels."""


def draw_overview(root: Path) -> None:
    """Draw the panels of the results that are there into overview.png of their folder; without any, nothing."""
    names = [name for name in SHOWN if (root / name / "curve.csv").exists()]
    if not names:
        return
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    panels = figure.subplots(2, 3).flat
    for name, axes in zip(names, panels, strict=False):
        _draw(axes, root / name, SHOWN[name])
    for axes in list(panels)[len(names) :]:
        axes.set_axis_off()
    FigureCanvasAgg(figure)
    with replacing(root / "overview.png", sync=False) as temporary:
        figure.savefig(temporary, format="png", dpi=100)


def _draw(axes: Axes, folder: Path, title: str) -> None:
    document = read_json(folder / "result.json")
    curves = {"Tidemill": ("tab:blue", folder / "curve.csv")}
    if (folder / "peer_curve.csv").exists():
        curves[document["peer"]["name"]] = "tab:orange", folder / "peer_curve.csv"
    for name, (colour, file) in curves.items():
        _draw_seeds(axes, name, colour, _curves(file))
    if reference := document["references"]["published"] or document["references"]["threshold"]:
        axes.axhline(reference["value"], color="tab:green", linestyle="--", linewidth=1, label=_said(reference))
    axes.set_title(title, fontsize="medium")
    axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:g}k")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="x-small")


def _draw_seeds(axes: Axes, name: str, colour: str, curves: list[_Curve]) -> None:
    """Draw each seed thin, and the mean with its band where all have evaluations."""
    for steps, means in curves:
        label = name if len(curves) == 1 else None
        axes.plot(steps, means, color=colour, linewidth=0.7 if len(curves) > 1 else 1.8, alpha=0.6, label=label)
    grid = common_grid(curves)
    if len(curves) > 1 and len(grid):
        on = on_grid(curves, grid)
        axes.fill_between(grid, *mean_interval(on), alpha=0.2, linewidth=0, color=colour)
        axes.plot(grid, on.mean(axis=0), color=colour, linewidth=1.8, label=f"{name}, {len(curves)} seeds")


def _curves(file: Path) -> list[_Curve]:
    """Return the evaluations of each seed: decisions and mean returns."""
    seeds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            seeds[row["seed"]].append((float(row["env_steps"]), float(row["mean"])))
    return [([steps for steps, _ in points], [mean for _, mean in points]) for points in seeds.values()]


def _said(reference: dict[str, Any]) -> str:
    return f"{reference['what']}: {reference['value']:g}"
