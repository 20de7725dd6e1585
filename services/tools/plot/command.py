"""`tidemill plot RUN…`: learning curves of runs in one picture, and their statistics in a table."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tidemill.errors import ConfigError
from tidemill.services.tools.plot.bootstrap import interquartile_mean, mean_interval
from tidemill.services.tools.plot.groups import Group, describe_seeds, find_groups
from tidemill.settings.argument_parser import ArgumentParser

_ABOUT = """Draw the learning curves of runs, and print their statistics.

Runs that differ only in their seed make one curve: the mean over seeds with its
95 % bootstrap interval. LABEL=FOLDER puts runs under a label. The table has the
last evaluation during training of each run that has ended, or of all runs if
none has; for figures to report, play fresh episodes with `tidemill evaluate`."""

_FORMATS = (".png", ".pdf", ".svg")
_AXES = ("env_steps", "wall_s", "learner_steps")


def plot(argv: Sequence[str]) -> int:
    """Draw and print; return the exit code."""
    parser = ArgumentParser(
        prog="tidemill plot", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="folder of a run, of several or of a sweep, such as runs/pong, or LABEL=FOLDER",
    )
    parser.add_argument("--out", type=Path, default=Path("plot.png"), metavar="FILE", help=".png, .pdf or .svg")
    parser.add_argument("--x", choices=_AXES, default="env_steps", help="horizontal axis (default: %(default)s)")
    arguments = parser.parse_args(list(argv))
    if arguments.out.suffix not in _FORMATS:
        raise ConfigError(f"--out is {arguments.out}, allowed: a name that ends in {', '.join(_FORMATS)}")
    groups = find_groups(arguments.runs)
    from tidemill.services.tools.plot.draw import draw

    try:
        draw(groups, arguments.x, arguments.out)
    except OSError as error:
        raise ConfigError(
            f"--out cannot be written to {arguments.out} ({error.strerror}); choose another file"
        ) from error
    print("\n".join(table(groups)))
    print(f"\n{arguments.out}")
    return 0


def table(groups: Sequence[Group]) -> list[str]:
    """Return a line for each group: seeds, length, mean of the last evaluations, its interval, interquartile mean.

    It is of the runs that the picture averages.
    """
    width = max(len(group.label) for group in groups)
    return [f"{group.label:{width}}  {_line(group)}" for group in groups]


def _line(group: Group) -> str:
    last = [curve.scores[-1] for curve in group.averaged]
    means = [score.mean for score in last]
    env_steps = f"{statistics.median(score.env_steps for score in last):,.0f} env steps"
    more = f" ({unended} more not ended)" if (unended := len(group.curves) - len(means)) else ""
    seeds = describe_seeds(group.averaged)
    if len(means) == 1:
        return f"{seeds}, {env_steps}: last evaluation {means[0]:.1f} over {last[0].episodes} episodes{more}"
    low, high = mean_interval(np.array(means))
    return (
        f"{seeds}, {env_steps}: last evaluations {statistics.fmean(means):.1f} "
        f"[{low:.1f}, {high:.1f}], interquartile mean {interquartile_mean(means):.1f}{more}"
    )
