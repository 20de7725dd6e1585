"""Output on the terminal during a run: plain lines, or only warnings. The live table is in `live`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol, TextIO

from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.installation import how_to_install
from tidemill.learner.status import LearnerStatus, SourceStatus
from tidemill.replay.sampling.shard_report import ShardReport
from tidemill.scores import Score
from tidemill.services.launcher.view.json_lines import JsonView
from tidemill.services.launcher.view.status import ClusterStatus
from tidemill.services.launcher.view.warnings import kind_of

_PLAIN_EVERY_S = 10.0


class View(Protocol):
    """Shows a run."""

    def event(self, message: str, details: Sequence[str] = ()) -> None:
        """Show one event, with lines that explain it."""

    def show(self, status: ClusterStatus) -> None:
        """Show the run as it is now."""

    def end(self, folder: Path, exit_code: int, result: dict[str, Any], lines: Sequence[str]) -> None:
        """Show how the run has ended, after `close`.

        Args:
            folder: Of the run.
            exit_code: Of the command.
            result: Its result.json; empty without one.
            lines: A summary for a person.
        """

    def close(self) -> None:
        """Release the terminal."""


def make_view(config: RunConfig, stream: TextIO | None = None, *, earlier: int = 0) -> View:
    """Return the view that the settings ask for; `auto` is live on a terminal that can redraw lines.

    Args:
        config: Of the run.
        stream: What it prints to; None for standard output.
        earlier: Scores of the run's earlier sessions, which are not printed as new ones.
    """
    stream = stream or sys.stdout
    kind = config.launcher.view
    if kind == "live" or (kind == "auto" and stream.isatty() and _redraws()):
        return _live_view(config, stream)
    if kind == "json":
        return JsonView(config.run, stream, earlier)
    if kind == "quiet":
        return QuietView(stream)
    return PlainView(config.run, stream, earlier)


def _redraws() -> bool:
    """True unless the terminal, such as an editor's, says that it only appends."""
    return os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _live_view(config: RunConfig, stream: TextIO) -> View:
    try:
        from tidemill.services.launcher.view.live import LiveView
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed, which launcher.view=live needs: {how_to_install('learn')}"
        ) from error
    return LiveView(config, stream)


class PlainView:
    """Lines that also read well in a file: each event, progress every ten seconds, each new score."""

    def __init__(self, run: RunSettings, stream: TextIO, earlier: int = 0) -> None:
        """Print to `stream`, but not the first `earlier` scores, which are of earlier sessions."""
        self._run, self._stream = run, stream
        self._elapsed_s = 0.0
        self._next_progress_s = 0.0
        self._scores = earlier
        self._warned: set[str] = set()

    def event(self, message: str, details: Sequence[str] = ()) -> None:
        """Print the message and its details, indented."""
        self._print(message)
        for line in details:
            print(f"           | {line}", file=self._stream)
        self._stream.flush()

    def show(self, status: ClusterStatus) -> None:
        """Print new warnings and scores at once, and progress when it is due."""
        self._elapsed_s = status.elapsed_s
        warnings = {kind_of(line): line for line in status.warnings}
        for kind in warnings.keys() - self._warned:
            self._print(f"warning: {warnings[kind]}")
        self._warned = set(warnings)
        for score in status.scores[self._scores :]:
            self._print(f"evaluation  {describe_score(score)}")
        self._scores = max(self._scores, len(status.scores))  # the file may be away for a moment
        if status.elapsed_s >= self._next_progress_s and (learner := status.counting):
            self._next_progress_s = status.elapsed_s + _PLAIN_EVERY_S
            self._print(describe_progress(status, learner, self._run))

    def end(self, folder: Path, exit_code: int, result: dict[str, Any], lines: Sequence[str]) -> None:
        """Print the summary."""
        del folder, exit_code, result
        print("\n".join(lines), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is held."""

    def _print(self, message: str) -> None:
        print(f"[{self._elapsed_s:7.1f} s] {message}", file=self._stream, flush=True)


class QuietView:
    """Nothing but warnings, and at last the result in one line."""

    def __init__(self, stream: TextIO) -> None:
        """Print to `stream`."""
        self._stream = stream
        self._warned: set[str] = set()

    def event(self, message: str, details: Sequence[str] = ()) -> None:
        """Show nothing: the logs of the run have it."""

    def show(self, status: ClusterStatus) -> None:
        """Print each kind of warning once."""
        for line in status.warnings:
            if (kind := kind_of(line)) not in self._warned:
                self._warned.add(kind)
                print(f"warning: {line}", file=self._stream, flush=True)

    def end(self, folder: Path, exit_code: int, result: dict[str, Any], lines: Sequence[str]) -> None:
        """Print how it ended: of a failure everything, else up to the list of files."""
        del folder, result
        shown = lines if exit_code else takewhile(bool, lines[1:])
        print("\n".join(shown), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is held."""


def describe_score(score: Score) -> str:
    """Return an evaluation in one line."""
    spread = f"std {score.std:.1f}, min {score.min:.1f}, max {score.max:.1f}, {score.episodes} episodes"
    return f"mean {score.mean:.1f} ({spread}), {describe_origin(score)}"


def describe_origin(score: Score) -> str:
    """Return the version and the env steps of a score, and the time of its evaluation."""
    return f"version {score.params_version} after {score.env_steps:,} env steps, at {score.wall_s:.0f} s"


def describe_time(seconds: float) -> str:
    """Return a time as hours, minutes and seconds, e.g. `1:02:03`, or `2:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def describe_left(status: ClusterStatus, run: RunSettings) -> str:
    """Return the time to the run's nearest limit at the present rates; empty if nothing moves."""
    left_s = status.left_s(run)
    return "" if left_s is None else f"about {describe_time(left_s)} left"


def describe_progress(status: ClusterStatus, learner: LearnerStatus, run: RunSettings) -> str:
    """Return the progress of a run in one line."""
    left = f", {words}" if (words := describe_left(status, run)) else ""
    trained = status.training_return
    training = f", training return {trained:.1f}" if trained is not None else ""
    best = f", best {status.best.mean:.1f}" if status.best else ""
    unavailable = f", {words}" if (words := unavailable_shards(learner.shards)) else ""
    evaluating = f", {status.evaluating}" if status.evaluating and status.evaluating != status.waiting else ""
    return (
        f"env steps {learner.env_steps:,} ({status.env_steps_per_s:,.0f}/s), "
        f"updates {learner.learner_steps:,} ({learner.steps_per_s:,.0f}/s), "
        f"version {learner.params_version}, table {learner.table_items:,}{training}{best}, "
        f"{status.waiting}{evaluating}{unavailable}{left}"
    )


def describe_shards(shards: Sequence[ShardReport]) -> dict[str, str]:
    """Return one line for each shard by its name: what it holds, its share of all samples, its address."""
    total = sum(shard.samples for shard in shards) or 1
    return {f"shard {shard.name}": _line(shard, shard.samples / total) for shard in shards}


def describe_sources(sources: Sequence[SourceStatus]) -> dict[str, str]:
    """Return one line for each source by its name: its share of each batch, what it holds and what it has given."""
    return {f"source {source.name}": _source_line(source) for source in sources}


def _source_line(source: SourceStatus) -> str:
    age = f", {source.age_s:,.0f} s old on average" if source.age_s else ""
    return f"{source.fraction:.0%} of each batch, {source.items:,} items, {source.samples:,} samples{age}"


def unavailable_shards(shards: Sequence[ShardReport]) -> str:
    """Return a phrase that names the shards that do not answer; empty if all do."""
    names = [shard.name for shard in shards if not shard.live]
    return f"without replay shard {', '.join(names)}" if names else ""


def _line(shard: ShardReport, ratio: float) -> str:
    state = f"{shard.items:,} items, weight {shard.total_weight:,.4g}" if shard.live else "does not answer"
    return f"{state}, {ratio:.0%} of all samples, {shard.address}"
