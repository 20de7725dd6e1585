"""The live view of a run: a table that is redrawn in place."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidemill.config.sections import RunConfig
from tidemill.learner.status import LearnerStatus
from tidemill.scores import Score
from tidemill.services.launcher.supervise.supervisor import Phase
from tidemill.services.launcher.view.status import ClusterStatus, ProcessRow
from tidemill.services.launcher.view.terminal import describe_left, describe_time, unavailable_shards

_EVENTS_SHOWN = 6
_BAR_WIDTH = 20
_SPARKLINE_WIDTH = 24
_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {Phase.SERVING: "green", Phase.STARTING: "yellow", Phase.BACKOFF: "red", Phase.STOPPING: "yellow"}


class LiveView:
    """A table that is redrawn in place."""

    def __init__(self, config: RunConfig, stream: TextIO) -> None:
        """Take the terminal until `close`."""
        self._config = config
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._snapshot = ClusterStatus(0.0, ())
        self._live = Live(console=Console(file=stream), auto_refresh=False, transient=False)
        self._live.start()

    def event(self, message: str, details: Sequence[str] = ()) -> None:
        """Show the message below the table; one with details is printed above it with them, where they stay."""
        self._events.append(f"{self._snapshot.elapsed_s:7.1f} s  {message}")
        if details:
            self._live.console.print(Text(f"{self._events[-1]}:", style="dim"))
        for line in details:
            self._live.console.print(Text(f"  | {line}", style="dim"))
        self._redraw()

    def show(self, status: ClusterStatus) -> None:
        """Redraw."""
        self._snapshot = status
        self._redraw()

    def end(self, folder: Path, exit_code: int, result: dict[str, Any], lines: Sequence[str]) -> None:
        """Print the summary below the table."""
        del folder, exit_code, result
        self._live.console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the last state on the terminal."""
        self._live.stop()

    def _redraw(self) -> None:
        self._live.update(render(self._config, self._snapshot, tuple(self._events)), refresh=True)


def render(config: RunConfig, status: ClusterStatus, events: Sequence[str]) -> RenderableType:
    """Return the whole live view as one panel."""
    title = f"{config.run.name}: {config.agent.algorithm} on {config.env.id}, {describe_time(status.elapsed_s)}"
    parts: list[RenderableType] = [_progress_table(config, status)]
    parts += [Text(f"! {line}", style="bold yellow") for line in status.warnings]
    parts += ["", _process_table(status.processes), "", *(Text(event, style="dim") for event in events)]
    parts.append(Text(str(config.run.folder), style="dim", justify="right"))
    return Panel(Group(*parts), title=title, subtitle=f"Ctrl-C stops and {status.keeps}", border_style="blue")


def _progress_table(config: RunConfig, status: ClusterStatus) -> Table:
    learner = status.learner or LearnerStatus()
    run = config.run
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    env_steps = _count(learner.env_steps, run.max_env_steps)
    table.add_row("env steps", env_steps, f"{status.env_steps_per_s:,.0f}/s", status.waiting)
    updates = _count(learner.learner_steps, run.max_learner_steps)
    updates_per_s = learner.steps_per_s if status.learner_answers else 0.0
    table.add_row("updates", updates, f"{updates_per_s:,.0f}/s", _versions(status))
    table.add_row("table", f"{learner.table_items:,}", "items", _table_state(status, config.table.max_items))
    for name, score in (("newest score", status.newest), ("best score", status.best)):
        if score is None:
            table.add_row(name, "-", "", "not evaluated yet")
        else:
            table.add_row(name, f"{score.mean:.1f}", f"± {score.std:.1f}", _origin(score))
    if status.evaluating:
        table.add_row("evaluation", "", "", status.evaluating)
    if len(status.scores) > 1:
        table.add_row("evaluations", str(len(status.scores)), "", sparkline([score.mean for score in status.scores]))
    if run.target_return is not None:
        table.add_row("target", f"{run.target_return:g}", *_way_to_target(status, run.target_return))
    if any((run.max_env_steps, run.max_learner_steps, run.max_wall_s)):
        fraction = status.fraction(run)
        bar = ProgressBar(total=1.0, completed=fraction, width=_BAR_WIDTH)
        table.add_row("limit", bar, f"{fraction:.0%}", describe_left(status, run))
    return table


def _versions(status: ClusterStatus) -> str:
    """Return the newest version, and how far behind it the data was collected."""
    lag = "" if status.policy_lag is None else f", policy lag {status.policy_lag:.3g}"
    return f"version {status.learner.params_version if status.learner else 0}{lag}"


def _table_state(status: ClusterStatus, max_items: int) -> str:
    """Return how full the table is, how often its items are used, and which of its shards answer."""
    if status.learner is None:
        return ""
    words = [f"{status.learner.table_items / max_items:.0%} full"]
    if status.replay_ratio is not None:
        words.append(f"replay ratio {status.replay_ratio:.3g}")
    if shards := status.learner.shards:
        words.append(f"{len(shards)} shards, {unavailable_shards(shards) or 'all answer'}")
    return ", ".join(words)


def sparkline(values: Sequence[float], width: int = _SPARKLINE_WIDTH) -> str:
    """Return a curve in one line of at most `width` characters, each the mean of as many values as the others."""
    finite = [value for value in values if math.isfinite(value)]
    count = min(len(finite), width)
    edges = [len(finite) * i // count for i in range(count + 1)] if count else []
    means = [fmean(finite[start:end]) for start, end in pairwise(edges)]
    if not means:
        return ""
    low, span = min(means), max(means) - min(means)
    return "".join(_BARS[round((mean - low) / span * (len(_BARS) - 1)) if span else 0] for mean in means)


def _way_to_target(status: ClusterStatus, target: float) -> tuple[str, str]:
    """Return the fraction of the way to the target that has been covered, and the rest."""
    fraction = status.target_fraction(target)
    if fraction is None or status.first is None or status.best is None:
        return "", ""
    if status.best.mean >= target:
        return "100%", "reached; to be confirmed by fresh episodes"
    return f"{fraction:.0%}", f"from {status.first.mean:.1f}, with {target - status.best.mean:.1f} to go"


def _process_table(processes: Sequence[ProcessRow]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for header in ("process", "state", "pid", "cpu", "memory", "restarts"):
        table.add_column(header, justify="left" if header in ("process", "state") else "right", no_wrap=True)
    table.add_column("last reason")
    for row in processes:
        style = _STYLES.get(row.phase, "dim")
        cpu = f"{row.usage.cpu_fraction:.0%}" if row.usage else ""
        memory = f"{row.usage.memory_bytes / 2**20:,.0f} MiB" if row.usage else ""
        numbers = (str(row.pid or ""), cpu, memory, str(row.restarts or ""))
        table.add_row(row.name, Text(row.phase.value, style=style), *numbers, Text(row.reason))
    return table


def _count(value: int, limit: int) -> str:
    return f"{value:,} of {limit:,}" if limit else f"{value:,}"


def _origin(score: Score) -> str:
    """Return which parameters a score belongs to, in few words for a narrow terminal."""
    return f"version {score.params_version}, {score.env_steps:,} env steps"
