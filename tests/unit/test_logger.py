"""LateLogger: where the lines of a program go that has not set up structlog."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import structlog
from structlog.testing import capture_logs

import tidemill
from tests.support.waiting import WAIT_S
from tidemill.logger import LateLogger

_LINES = """
from tidemill.logger import LateLogger
log = LateLogger()
log.debug("a detail", at=1)
log.info("all is well", at=2)
log.warning("stream lost, reconnecting", address="127.0.0.1:1", reason="100% gone")
try:
    1 / 0
except ZeroDivisionError as error:
    log.error("failed", exc_info=error)
"""


def _said(before: str) -> tuple[str, str]:
    """Return the outputs of a program that logs some lines after `before`."""
    command = [sys.executable, "-c", before + _LINES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    return done.stdout, done.stderr


def test_warnings_go_to_standard_error_of_a_program_that_set_up_nothing() -> None:
    """Never to standard output, which may be the program's result; whether or not structlog was imported."""
    for before in ("", "import structlog"):
        out, err = _said(before)
        assert out == ""
        first, second, *traceback = err.splitlines()
        assert first == "stream lost, reconnecting: address=127.0.0.1:1, reason=100% gone"
        assert second == "failed"
        assert traceback[-1] == "ZeroDivisionError: division by zero"


def test_lines_are_those_of_the_logger_tidemill() -> None:
    """A program that sets up `logging` gets them by name and level, and can silence them."""
    out, err = _said("import logging; logging.basicConfig(level='INFO', format='%(name)s %(levelname)s %(message)s')")
    assert out == ""
    assert err.splitlines()[:2] == [
        "tidemill INFO all is well: at=2",
        "tidemill WARNING stream lost, reconnecting: address=127.0.0.1:1, reason=100% gone",
    ]
    assert _said("import logging; logging.getLogger('tidemill').setLevel('CRITICAL')") == ("", "")


def test_lines_go_to_structlog_where_it_is_set_up() -> None:
    """With their fields, as a service's own lines do."""
    with capture_logs() as lines:
        assert structlog.is_configured()
        LateLogger().warning("stream lost", address="127.0.0.1:1")
    assert lines == [{"event": "stream lost", "address": "127.0.0.1:1", "log_level": "warning"}]


def test_library_logs_in_no_other_way() -> None:
    """What a program may import asks structlog for nothing: unconfigured, it prints to standard output."""
    own = {"logger.py", "rpc/telemetry.py", "programs/idle.py"}  # the two that decide, and a process
    library = Path(tidemill.__file__).parent
    asking = [
        str(file.relative_to(library))
        for file in library.rglob("*.py")
        if not file.is_relative_to(library / "services") and "structlog.get_logger" in file.read_text()
    ]
    assert set(asking) - own == set()
