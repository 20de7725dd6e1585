"""structlog's logger for the modules that a client imports: structlog comes with its first line.

With it come rich's tracebacks, a third of the time that a client's import would take.
"""

from __future__ import annotations

from typing import Any


class LateLogger:
    """Passes each line to structlog, as it is configured by then."""

    def info(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - fields of a line are of any kind
        """Log what is as it should be."""
        _structlog().info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        """Log what a reader should know of."""
        _structlog().warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        """Log what failed."""
        _structlog().error(event, **fields)


def _structlog() -> Any:  # noqa: ANN401 - what structlog returns
    import structlog

    return structlog.get_logger()
