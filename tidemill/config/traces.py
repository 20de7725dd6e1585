"""The package that traces need."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from tidemill.settings.check import check_that


def check_traces(settings: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError if the process would trace without OpenTelemetry. Who reads a traced run does not need it."""
    every = settings.log.trace_every
    check_that(
        not every or find_spec("opentelemetry") is not None,
        f"log.trace_every is {every}, which needs OpenTelemetry: pip install 'tidemill[trace]'",
    )
