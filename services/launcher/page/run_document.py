"""Data of the status page: the launcher's view of the run, the last lines of its logs, and its settings."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tidemill.config.sections import RunConfig
from tidemill.scores import Score
from tidemill.services.launcher.page.server import StatusPage
from tidemill.services.launcher.run.folder import log_file
from tidemill.services.launcher.run.verbs import apply_verb
from tidemill.services.launcher.view.json_lines import progress_fields
from tidemill.services.launcher.view.status import ClusterStatus, of_every_kind
from tidemill.services.launcher.view.terminal import View, describe_left, describe_time, unavailable_shards

_FILES = {"/video.mp4": ("videos/best.mp4", "video/mp4"), "/settings": ("config.yaml", "text/plain; charset=utf-8")}
"""All that is served from the run's folder."""
_EVENTS = 20
_POINTS = 500
_LOGS = 16
_LOG_LINES = 12
_LINE_CHARACTERS = 400
_TAIL_BYTES = 8 * 1024


@contextmanager
def with_status_page(
    config: RunConfig,
    folder: Path,
    view: View,
    *,
    host: str = "127.0.0.1",
    lines_of: Callable[[str], list[str]] | None = None,
) -> Iterator[View]:
    """Serve the page until the end of the block; yield the view to report to.

    Args:
        config: Settings of the run.
        folder: Of the run.
        view: Shows what is reported, too, and the page's address.
        host: Address of this machine to listen at.
        lines_of: Returns the last log lines of a process by its name; by default those of its file in the folder.

    Raises:
        ConfigError: its port is not free.
    """
    if not config.launcher.status_page:
        yield view
        return
    document = RunDocument(config, folder, view, lines_of)
    files = {url: (folder / name, kind) for url, (name, kind) in _FILES.items()}
    control = partial(apply_verb, config.cluster.learner, asked_by="the status page")
    page = StatusPage(document.read, files, control, host=host, port=config.launcher.status_page_port)
    try:
        view.event("status page", [page.url])
        yield document
    finally:
        page.close()


class RunDocument:
    """Passes what is reported to the terminal's view, and keeps what the page needs."""

    def __init__(
        self, config: RunConfig, folder: Path, view: View, lines_of: Callable[[str], list[str]] | None = None
    ) -> None:
        """Keep nothing yet."""
        self._config, self._folder, self._view = config, folder, view
        self._lines_of = lines_of or (lambda name: last_lines(log_file(folder, name)))
        self._lock = threading.Lock()
        self._status = ClusterStatus(0.0, ())
        self._events: deque[str] = deque(maxlen=_EVENTS)

    def event(self, message: str, details: Sequence[str] = ()) -> None:
        """Keep and show one event."""
        with self._lock:
            self._events.append(f"{describe_time(self._status.elapsed_s)}  {message}")
        self._view.event(message, details)

    def show(self, status: ClusterStatus) -> None:
        """Keep and show the run as it is now."""
        with self._lock:
            self._status = status
        self._view.show(status)

    def end(self, folder: Path, exit_code: int, result: dict[str, Any], lines: Sequence[str]) -> None:
        """Show how the run has ended."""
        self._view.end(folder, exit_code, result, lines)

    def close(self) -> None:
        """Close the view."""
        self._view.close()

    def read(self) -> dict[str, Any]:
        """Return the document; safe to call from several threads."""
        with self._lock:
            status, events = self._status, list(self._events)
        run = self._config.run
        has_limit = any((run.max_env_steps, run.max_learner_steps, run.max_wall_s))
        return {
            name: _finite(value)
            for name, value in {
                "name": run.name,
                "algorithm": self._config.agent.algorithm,
                "env": self._config.env.id,
                "folder": str(run.folder),
                "elapsed": describe_time(status.elapsed_s),
                "state": status.learner.state.name.lower() if status.learner else "starting",
                "waiting": status.waiting,
                "end": status.learner.end if status.learner else "",
                "left": describe_left(status, run),
                "limits": {"env_steps": run.max_env_steps, "learner_steps": run.max_learner_steps},
                "target": run.target_return,
                "target_fraction": status.target_fraction(run.target_return),
                "fraction": status.fraction(run) if has_limit and not status.has_ended else None,
                "max_items": self._config.table.max_items,
                "shards": unavailable_shards(status.learner.shards) if status.learner else "",
                "newest": status.newest and dataclasses.asdict(status.newest),
                "best": status.best and dataclasses.asdict(status.best),
                "evaluations": len(status.scores),
                "scores": [[s.env_steps, s.mean, s.std, s.wall_s] for s in _thinned(status.scores)],
                "warnings": list(status.warnings),
                "events": events,
                "logs": self._logs(status),
                "video": self._video(),
                **progress_fields(status, run),
            }.items()
        }

    def _logs(self, status: ClusterStatus) -> dict[str, list[str]]:
        names = of_every_kind([row.name for row in status.processes if row.is_process], _LOGS)
        return {name: self._lines_of(name) for name in names}

    def _video(self) -> int:
        """Return the video's time of modification in milliseconds; 0 if there is none."""
        try:
            return (self._folder / _FILES["/video.mp4"][0]).stat().st_mtime_ns // 10**6
        except OSError:
            return 0


def last_lines(file: Path) -> list[str]:
    """Return the last lines of a log, each cut where it is very long; none if there is no file."""
    try:
        with file.open("rb") as content:
            content.seek(max(content.seek(0, 2) - _TAIL_BYTES, 0))
            lines = content.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line[:_LINE_CHARACTERS] for line in lines[-_LOG_LINES:]]


def _thinned(scores: Sequence[Score]) -> Sequence[Score]:
    """Return at most so many of the scores: among them the first, the best and the newest."""
    if len(scores) <= _POINTS:
        return scores
    every, last = math.ceil(len(scores) / (_POINTS - 2)), len(scores) - 1
    best = max(range(len(scores)), key=lambda index: scores[index].mean)
    return [scores[index] for index in sorted({0, best, *range(last, 0, -every)})]


def _finite(value: Any) -> Any:  # noqa: ANN401 - what JSON holds
    """Return the document with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
