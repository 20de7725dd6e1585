"""Starts the traces of a process by its settings."""

from __future__ import annotations

from tidemill.config.run import LogSettings, RunSettings
from tidemill.tracing import start


def start_traces(log: LogSettings, run: RunSettings, name: str) -> None:
    """Trace what `log.trace_every` asks for; nothing by default.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    start(log.trace_every, log.trace_to, run=run.name, folder=run.folder, name=name)
