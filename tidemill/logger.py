"""The log of what a program imports, which may be a service or a user's: structlog where that is set up, else logging.

structlog is not imported for it: it brings rich's tracebacks, a third of the time that a client's import would take.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

_NAME = "tidemill"


class LateLogger:
    """Passes each line on, as the program has logs set up by then.

    A service sets structlog up. In a program that has not, a line goes to the logger `tidemill` of the standard
    library, which shows warnings on standard error unless the program says otherwise, and never to standard output.
    """

    def debug(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - fields of a line are of any kind
        """Log what only helps to find a fault."""
        _log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        """Log what is as it should be."""
        _log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        """Log what a reader should know of."""
        _log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        """Log what failed; `exc_info` is the exception whose traceback belongs to it."""
        _log(logging.ERROR, event, fields)


def _log(level: int, event: str, fields: dict[str, Any]) -> None:
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        getattr(structlog.get_logger(), logging.getLevelName(level).lower())(event, **fields)
        return
    error = fields.pop("exc_info", None)
    text = ", ".join(f"{name}={value}" for name, value in fields.items())
    logging.getLogger(_NAME).log(level, "%s", f"{event}: {text}" if text else event, exc_info=error)
