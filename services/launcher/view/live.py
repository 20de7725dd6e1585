"""The live view of a run: a table that is redrawn in place."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO, TypedDict

from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidemill.config.sections import RunConfig
from tidemill.learner.status import LearnerStatus
from tidemill.scores import Score
from tidemill.services.launcher.supervise.supervisor import Phase
from tidemill.services.launcher.view.status import ClusterStatus, ProcessRow, ProcessUsage
from tidemill.services.launcher.view.terminal import describe_left, describe_time, unavailable_shards

_EVENTS_SHOWN = 6
_BAR_WIDTH = 20
_SPARKLINE_WIDTH = 24
_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {Phase.SERVING: "green", Phase.STARTING: "yellow", Phase.BACKOFF: "red", Phase.STOPPING: "yellow"}


class _Cut(TypedDict, total=False):
    """Options for rich of text that is cut; empty for other text."""

    no_wrap: bool
    overflow: OverflowMethod


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
        view = render(self._config, self._snapshot, tuple(self._events), self._live.console)
        self._live.update(view, refresh=True)


@dataclass(frozen=True)
class _Layout:
    """Amount of detail with which a run is shown."""

    rows: int
    """Maximum number of rows for processes of one kind; 0 shows those alone that do not serve."""
    events: int = _EVENTS_SHOWN
    is_dense: bool = False
    """Without empty lines and the run's folder."""
    is_cut: bool = False
    """Long lines end in an ellipsis instead of continuing on the next."""


def render(config: RunConfig, status: ClusterStatus, events: Sequence[str], console: Console) -> RenderableType:
    """Return the live view as one panel, with as much of it as fits into the terminal.

    Processes of one kind are summarised first, then older events go, then long lines are cut. The newest two events and
    the line on Ctrl-C stay.
    """
    view: RenderableType = ""
    for layout in _layouts(status.processes):
        view = _panel(config, status, events, layout)
        if len(console.render_lines(view, pad=False)) < console.height:  # the cursor has the last line
            break
    return view


def _layouts(processes: Sequence[ProcessRow]) -> Iterator[_Layout]:
    """Yield layouts, each with less than the one before."""
    rows = max(Counter(_kind(row) for row in processes).values(), default=1)
    while rows > 1:
        yield _Layout(rows)
        rows = (rows + 1) // 2
    yield _Layout(1)
    yield _Layout(1, 4)
    yield _Layout(1, 2)
    yield _Layout(1, 2, is_dense=True)
    yield _Layout(1, 2, is_dense=True, is_cut=True)
    yield _Layout(0, 2, is_dense=True, is_cut=True)


def _panel(config: RunConfig, status: ClusterStatus, events: Sequence[str], layout: _Layout) -> Panel:
    title = f"{config.run.name}: {config.agent.algorithm} on {config.env.id}, {describe_time(status.elapsed_s)}"
    space = [] if layout.is_dense else [""]
    cut: _Cut = {"no_wrap": True, "overflow": "ellipsis"} if layout.is_cut else {}
    parts: list[RenderableType] = [_progress_table(config, status, cut)]
    parts += [Text(f"! {line}", style="bold yellow", **cut) for line in status.warnings]
    parts += [*space, _process_table(_summarised(status.processes, layout.rows), cut), *space]
    parts += [Text(event, style="dim", **cut) for event in events[-layout.events :]]
    if not layout.is_dense:
        parts.append(Text(str(config.run.folder), style="dim", justify="right"))
    return Panel(Group(*parts), title=title, subtitle=f"Ctrl-C stops and {status.keeps}", border_style="blue")


def _kind(row: ProcessRow) -> str:
    """Return the kind of a process: `actor` for `actor-3`."""
    return row.name.rpartition("-")[0] or row.name


def _summarised(processes: Sequence[ProcessRow], most: int) -> list[ProcessRow]:
    """Return at most so many rows of each kind; the last one stands for all that are left, which are not in trouble.

    With 0 only those that do not serve are shown, one for each kind.
    """
    kinds: dict[str, list[ProcessRow]] = {}
    for row in processes:
        kinds.setdefault(_kind(row), []).append(row)
    shown: list[ProcessRow] = []
    for kind, of_kind in kinds.items():
        rows = [row for row in of_kind if most or row.phase is not Phase.SERVING]
        if len(rows) <= max(most, 1):
            shown += rows
            continue
        by_trouble = sorted(rows, key=lambda row: row.phase is Phase.SERVING)
        alone = by_trouble[: most - 1] if most else []
        shown += [row for row in rows if row in alone]
        shown.append(_sum(kind, [row for row in rows if row not in alone]))
    return shown


def _sum(kind: str, rows: Sequence[ProcessRow]) -> ProcessRow:
    """Return one row for several: the phase of the first in trouble, sums, the newest reason."""
    serving = sum(row.phase is Phase.SERVING for row in rows)
    first = next((row for row in rows if row.phase is not Phase.SERVING), rows[0])
    usages = [row.usage for row in rows if row.usage is not None]
    cpu, memory = sum(usage.cpu_fraction for usage in usages), sum(usage.memory_bytes for usage in usages)
    others = f"{len(rows) - serving} of {len(rows)} do not serve" if serving < len(rows) else ""
    why = first.reason or next((row.reason for row in rows if row.reason), "")
    reason = ": ".join(each for each in (others, why) if each)
    usage = ProcessUsage(cpu, memory) if usages else None
    return ProcessRow(f"{kind} x {len(rows)}", first.phase, None, sum(row.restarts for row in rows), reason, usage)


def _progress_table(config: RunConfig, status: ClusterStatus, cut: _Cut) -> Table:
    learner = status.learner or LearnerStatus()
    run = config.run
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()

    def add(name: str, value: RenderableType, rate: str, words: str) -> None:
        table.add_row(name, value, rate, Text(words, **cut))

    env_steps = _count(learner.env_steps, run.max_env_steps)
    add("env steps", env_steps, f"{status.env_steps_per_s:,.0f}/s", status.waiting)
    updates = _count(learner.learner_steps, run.max_learner_steps)
    updates_per_s = learner.steps_per_s if status.learner_answers else 0.0
    add("updates", updates, f"{updates_per_s:,.0f}/s", _versions(status))
    add("table", f"{learner.table_items:,}", "items", _table_state(status, config.table.max_items))
    for name, score in (("newest score", status.newest), ("best score", status.best)):
        if score is None:
            add(name, "-", "", "not evaluated yet")
        else:
            add(name, f"{score.mean:.1f}", f"± {score.std:.1f}", _origin(score))
    if status.training_return is not None:
        add("training", f"{status.training_return:.1f}", "", "mean return of the actors' newest episodes")
    if status.evaluating:
        add("evaluation", "", "", status.evaluating)
    if len(status.scores) > 1:
        add("evaluations", str(len(status.scores)), "", sparkline([score.mean for score in status.scores]))
    if run.target_return is not None:
        add("target", f"{run.target_return:g}", *_way_to_target(status, run.target_return))
    if any((run.max_env_steps, run.max_learner_steps, run.max_wall_s)):
        fraction = status.fraction(run)
        bar = ProgressBar(total=1.0, completed=fraction, width=_BAR_WIDTH)
        add("limit", bar, f"{fraction:.0%}", describe_left(status, run))
    return table


def _versions(status: ClusterStatus) -> str:
    """Return the newest version, and how far behind it the data was collected."""
    lag = "" if status.policy_lag is None else f", policy lag {status.policy_lag:.3g}"
    return f"version {status.learner.params_version if status.learner else 0}{lag}"


def _table_state(status: ClusterStatus, max_items: int) -> str:
    """Return the fill of the table, the replay ratio, and the shards that answer."""
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
        if status.has_failed_confirmation(target):
            return "100%", "reached, but fresh episodes did not confirm it"
        return "100%", "reached; to be confirmed by fresh episodes"
    return f"{fraction:.0%}", f"from {status.first.mean:.1f}, with {target - status.best.mean:.1f} to go"


def _process_table(processes: Sequence[ProcessRow], cut: _Cut) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for header in ("process", "state", "pid", "cpu", "memory", "restarts"):
        table.add_column(header, justify="left" if header in ("process", "state") else "right", no_wrap=True)
    table.add_column("last reason")
    for row in processes:
        style = _STYLES.get(row.phase, "dim")
        cpu = f"{row.usage.cpu_fraction:.0%}" if row.usage else ""
        memory = f"{row.usage.memory_bytes / 2**20:,.0f} MiB" if row.usage else ""
        numbers = (str(row.pid or ""), cpu, memory, str(row.restarts or ""))
        table.add_row(row.name, Text(row.phase.value, style=style), *numbers, Text(row.reason, **cut))
    return table


def _count(value: int, limit: int) -> str:
    return f"{value:,} of {limit:,}" if limit else f"{value:,}"


def _origin(score: Score) -> str:
    """Return the version and the env steps of a score, in few words for a narrow terminal."""
    return f"version {score.params_version}, {score.env_steps:,} env steps"
