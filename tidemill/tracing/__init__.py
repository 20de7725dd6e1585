"""Traces of transitions by OpenTelemetry, from an actor's append to the update that uses them (ADR 0061).

Off unless a process calls `start`: only then is OpenTelemetry imported. Whoever could add a span asks `tracer()` first,
once for each message or batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.tracing.tracer import Tracer

_tracer: Tracer | None = None

FOLDER = "traces"
"""Of files of traces, in the run's folder."""


def tracer() -> Tracer | None:
    """The tracer of this process; None if tracing is disabled."""
    return _tracer


def start(every: int, to: str, *, run: str, folder: Path, name: str) -> None:
    """Trace from now on, or do nothing if `every` is 0.

    Args:
        every: One chunk in so many is traced by the process that writes it.
        to: `http://host:port` or `https://host:port` that takes OTLP by HTTP; empty for a file.
        run: Name of the run.
        folder: Folder of the run; a file of traces is written there.
        name: Name of the process, such as `actor-3`.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    global _tracer  # noqa: PLW0603 - as the process's log and metrics are
    if not every:
        return
    try:
        from tidemill.tracing.tracer import Tracer, exporter
    except ImportError as error:
        raise ConfigError(
            f"log.trace_every is {every}, which needs OpenTelemetry ({error}): pip install 'tidemill[trace]'"
        ) from error
    _tracer = Tracer(exporter(to, folder / FOLDER / f"{name}.jsonl"), every=every, run=run, name=name)
