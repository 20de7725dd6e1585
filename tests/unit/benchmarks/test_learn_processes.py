"""Whatever is started is waited for or stopped, and nothing is left."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from benchmarks.learn.processes import Processes, Stopped

FOREVER = (sys.executable, "-c", "import threading; print('up', flush=True); threading.Event().wait()")


def test_command_ends_with_its_code_and_its_output_in_the_log(tmp_path: Path) -> None:
    """A second command's output comes after the first's; the folder of the log is made."""
    log, processes = tmp_path / "new" / "log", Processes()
    assert processes.run([sys.executable, "-c", "print('one')"], log, 60.0) == 0
    code = "import os, sys; print(os.environ['WHO'], file=sys.stderr); sys.exit(3)"
    assert processes.run([sys.executable, "-c", code], log, 60.0, {"WHO": "two"}) == 3
    assert log.read_text().split() == ["one", "two"]


def test_command_is_stopped_at_its_limit(tmp_path: Path) -> None:
    """It gets SIGTERM, and there is no exit code to report."""
    assert Processes().run(FOREVER, tmp_path / "log", 0.01) is None


def test_stop_ends_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    """The thread that waits for a command learns that it was stopped, and so does the next one that asks."""
    processes, outcome = Processes(), []

    def wait_for_it() -> None:
        try:
            processes.run(FOREVER, tmp_path / "log", 60.0)
        except Stopped:
            outcome.append("stopped")

    waiting = threading.Thread(target=wait_for_it)
    waiting.start()
    while waiting.is_alive() and not ((tmp_path / "log").exists() and (tmp_path / "log").read_text()):
        waiting.join(0.01)
    processes.stop()
    waiting.join(60.0)
    assert outcome == ["stopped"]
    with pytest.raises(Stopped):
        processes.run(FOREVER, tmp_path / "log", 60.0)
